package sparkmjoin;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Reads a partition of the source as Arrow batches. Spark's own reader makes rows of them one by one. The worker gets
 * one row, which is the partition to read.
 */
final class ColumnarReader implements PartitionReader<ColumnarBatch> {
  private final scala.collection.immutable.Map<String, SQLMetric> sizes = PythonCustomMetric.pythonMetrics();
  private final Iterator<ColumnarBatch> batches;

  ColumnarReader(UserDefinedPythonDataSource source, byte[] read, byte[] partition, StructType schema) {
    InternalRow input = new GenericInternalRow(new Object[] {partition});
    this.batches =
        ArrowWorker.run(
            source.createPythonFunction(read),
            0L,
            Iterator.single(input),
            UserDefinedPythonDataSource.readInputSchema(),
            schema,
            ArrowWorker.Settings.of(SQLConf.get(), Option.empty(), Option.empty()),
            sizes);
  }

  @Override
  public boolean next() {
    return batches.hasNext();
  }

  @Override
  public ColumnarBatch get() {
    return batches.next();
  }

  @Override
  public void close() {}

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return CollectionConverters.asJava(sizes).entrySet().stream()
        .map(size -> new ScanMetrics.Value(size.getKey(), size.getValue().value()))
        .toArray(CustomTaskMetric[]::new);
  }
}
