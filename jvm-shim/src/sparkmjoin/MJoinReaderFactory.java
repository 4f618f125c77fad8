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
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.CollectionAccumulator;
import scala.Option;

/** Reads partitions through Spark's own reader, each in its own Python worker, and passes on what the worker counts. */
final class MJoinReaderFactory implements PartitionReaderFactory {
  private final PythonFunction source;
  private final byte[] read;
  private final StructType schema;
  private final CollectionAccumulator<byte[]> report;
  private final String pool; // null: any worker will do
  private final boolean columnar;

  MJoinReaderFactory(
      PythonFunction source,
      byte[] read,
      StructType schema,
      CollectionAccumulator<byte[]> report,
      String pool,
      boolean columnar) {
    this.source = source;
    this.read = read;
    this.schema = schema;
    this.report = report;
    this.pool = pool;
    this.columnar = columnar;
  }

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return columnar;
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    PythonStreamingInputPartition asked = (PythonStreamingInputPartition) partition;
    return new ReportingReader<>(
        new ColumnarReader(reporting(asked), read, asked.pickedPartition(), schema), report);
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    UserDefinedPythonDataSource python = reporting((PythonStreamingInputPartition) partition);
    return new ReportingReader<>(
        new PythonStreamingPartitionReaderFactory(python, read, schema, Option.empty(), Option.empty())
            .createReader(partition),
        report);
  }

  private ReportingSource reporting(PythonStreamingInputPartition partition) {
    return new ReportingSource(source, pool == null ? null : pool + "-" + partition.index(), report);
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

  private record ReportingReader<T>(PartitionReader<T> reader, CollectionAccumulator<byte[]> report)
      implements PartitionReader<T> {
    @Override
    public boolean next() throws IOException {
      return reader.next();
    }

    @Override
    public T get() {
      return reader.get();
    }

    @Override
    public void close() throws IOException {
      reader.close();
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return Stream.concat(Stream.of(reader.currentMetricsValues()), TaskReports.values(report).stream())
          .toArray(CustomTaskMetric[]::new);
    }
  }
}
