package sparkmjoin;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.CollectionAccumulator;
import scala.Option;

/** Reads partitions through Spark's own reader, each in its own Python worker, and passes on what the worker counts. */
final class MJoinReaderFactory implements PartitionReaderFactory {
  private final PythonFunction source;
  private final byte[] read;
  private final StructType schema;
  private final CollectionAccumulator<byte[]> report;
  private final String pool; // null: any worker will do

  MJoinReaderFactory(PythonFunction source, byte[] read, StructType schema, CollectionAccumulator<byte[]> report, String pool) {
    this.source = source;
    this.read = read;
    this.schema = schema;
    this.report = report;
    this.pool = pool;
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    int index = ((PythonStreamingInputPartition) partition).index();
    UserDefinedPythonDataSource reporting =
        new ReportingSource(source, pool == null ? null : pool + "-" + index, report);
    PartitionReader<InternalRow> rows =
        new PythonStreamingPartitionReaderFactory(reporting, read, schema, Option.empty(), Option.empty())
            .createReader(partition);
    return new ReportingReader(rows, report);
  }

  /** A Python source whose workers are its own, and report to us. */
  private static final class ReportingSource extends UserDefinedPythonDataSource {
    private final String worker;
    private final CollectionAccumulator<byte[]> report;

    ReportingSource(PythonFunction source, String worker, CollectionAccumulator<byte[]> report) {
      super(source);
      this.worker = worker;
      this.report = report;
    }

    @Override
    public PythonFunction createPythonFunction(byte[] pickled) {
      PythonFunction f = dataSourceCls();
      Map<String, String> environment = new HashMap<>(f.envVars());
      if (worker != null) {
        environment.put("MJOIN_WORKER", worker);
      }
      return new SimplePythonFunction(
          pickled, environment, f.pythonIncludes(), f.pythonExec(), f.pythonVer(), f.broadcastVars(), report);
    }
  }

  private record ReportingReader(PartitionReader<InternalRow> rows, CollectionAccumulator<byte[]> report)
      implements PartitionReader<InternalRow> {
    @Override
    public boolean next() throws IOException {
      return rows.next();
    }

    @Override
    public InternalRow get() {
      return rows.get();
    }

    @Override
    public void close() throws IOException {
      rows.close();
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return Stream.concat(Stream.of(rows.currentMetricsValues()), TaskReports.values(report).stream())
          .toArray(CustomTaskMetric[]::new);
    }
  }
}
