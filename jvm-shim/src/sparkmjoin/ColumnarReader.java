package sparkmjoin;

import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.StandardSocketOptions;
import java.nio.channels.SocketChannel;
import java.util.List;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.api.python.ChainedPythonFunctions;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonWorker;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.BatchedPythonArrowInput;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Passes on the Arrow batches of a Python worker as they come. Spark's own reader makes rows of them one by one.
 *
 * <p>It is Spark's {@code MapInBatchEvaluatorFactory} without the last step. The vectors belong to the runner, which
 * fills them again for the next batch and frees them when the task ends.
 */
final class ColumnarReader implements PartitionReader<ColumnarBatch> {
  private static final int EVAL_TYPE = PythonEvalType.SQL_MAP_ARROW_ITER_UDF();

  private final UserDefinedPythonDataSource source;
  private final StructType schema;
  private final scala.collection.immutable.Map<String, SQLMetric> sizes = PythonCustomMetric.pythonMetrics();
  private final Iterator<ColumnarBatch> batches;

  ColumnarReader(UserDefinedPythonDataSource source, byte[] read, byte[] partition, StructType schema) {
    this.source = source;
    this.schema = schema;
    TaskContext context = TaskContext.get();
    InternalRow input = row(row(partition));
    this.batches =
        new Runner(source.createPythonFunction(read), sizes)
            .compute(Iterator.single(Iterator.single(input)), context.partitionId(), context);
  }

  private static InternalRow row(Object value) {
    return new GenericInternalRow(new Object[] {value});
  }

  @Override
  public boolean next() {
    return batches.hasNext();
  }

  @Override
  public ColumnarBatch get() {
    ColumnarBatch batch = batches.next();
    ArrowColumnVector struct = (ArrowColumnVector) batch.column(0);
    if (!DataType$.MODULE$.equalsIgnoreCompatibleNullability(struct.dataType(), schema)) {
      throw new IllegalStateException(
          "the worker sent " + struct.dataType().simpleString() + " instead of " + schema.simpleString());
    }
    ColumnVector[] columns = new ColumnVector[schema.length()];
    for (int i = 0; i < columns.length; i++) {
      columns[i] = FlatColumn.of(struct.getChild(i));
    }
    return new ColumnarBatch(columns, batch.numRows());
  }

  @Override
  public void close() {}

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return CollectionConverters.asJava(sizes).entrySet().stream()
        .map(size -> new ScanMetrics.Value(size.getKey(), size.getValue().value()))
        .toArray(CustomTaskMetric[]::new);
  }

  private static <T> scala.collection.immutable.Seq<T> seq(T value) {
    return CollectionConverters.asScala(List.of(value)).toSeq();
  }

  /** Sends one row to the worker, the partition to read, and receives Arrow batches. */
  @SuppressWarnings("unchecked") // Java does not see that Scala's types of `newWriter` agree
  private static final class Runner extends ArrowPythonRunner implements BatchedPythonArrowInput {
    private Iterator<InternalRow> nextBatchStart;

    Runner(PythonFunction read, scala.collection.immutable.Map<String, SQLMetric> sizes) {
      super(
          seq(new Tuple2<>(new ChainedPythonFunctions(seq(read)), 0L)),
          EVAL_TYPE,
          new int[][] {{0}},
          new StructType().add("struct", UserDefinedPythonDataSource.readInputSchema()),
          SQLConf.get().sessionLocalTimeZone(),
          SQLConf.get().arrowUseLargeVarTypes(),
          ArrowPythonRunner.getPythonRunnerConfMap(SQLConf.get()),
          sizes,
          Option.empty(),
          Option.empty());
      BatchedPythonArrowInput.$init$(this);
    }

    /**
     * Sends messages to the worker at once. A task begins and ends with several small messages. By default a message
     * that was not acknowledged yet delays the next, and the worker acknowledges late what it has no answer to.
     */
    @Override
    @SuppressWarnings("rawtypes")
    public BasePythonRunner.Writer newWriter(
        SparkEnv env,
        PythonWorker worker,
        Iterator<Iterator<InternalRow>> input,
        int partition,
        TaskContext context) {
      SocketChannel channel = worker.channel();
      try {
        if (channel.supportedOptions().contains(StandardSocketOptions.TCP_NODELAY)) { // no Unix domain socket
          channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        }
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
      return super.newWriter(env, worker, input, partition, context);
    }

    @Override
    public boolean writeNextBatchToArrowStream(
        VectorSchemaRoot root,
        ArrowStreamWriter writer,
        DataOutputStream out,
        Iterator<Iterator<InternalRow>> input) {
      return BatchedPythonArrowInput.super.writeNextBatchToArrowStream(root, writer, out, input);
    }

    @Override
    public Iterator<InternalRow> org$apache$spark$sql$execution$python$BatchedPythonArrowInput$$nextBatchStart() {
      return nextBatchStart;
    }

    @Override
    public void org$apache$spark$sql$execution$python$BatchedPythonArrowInput$$nextBatchStart_$eq(
        Iterator<InternalRow> start) {
      nextBatchStart = start;
    }
  }
}
