package sparkmjoin;

import java.io.DataOutputStream;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.net.StandardSocketOptions;
import java.nio.channels.SocketChannel;
import java.util.Map;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.JobArtifactSet;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.api.python.ChainedPythonFunctions;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonWorker;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.BatchedPythonArrowInput;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.CollectionAccumulator;
import scala.Option;
import scala.Tuple2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/**
 * A Python worker in one task: rows go to its function, as to that of a {@code mapInArrow}, and its Arrow batches are
 * passed on as they come.
 *
 * <p>It is Spark's {@code MapInBatchEvaluatorFactory} without the last step, which makes rows of the batches one by
 * one. The vectors belong to the runner, which fills them again for the next batch and frees them when the task ends.
 * The size of a batch is that of its rows.
 */
@SuppressWarnings("unchecked") // Java does not see that Scala's types of `newWriter` agree
final class ArrowWorker extends ArrowPythonRunner implements BatchedPythonArrowInput {
  private static final int EVAL_TYPE = PythonEvalType.SQL_MAP_ARROW_ITER_UDF();

  private final Structs structs;
  private Iterator<InternalRow> nextBatchStart;

  /** What a session says about how rows travel, and which files its workers see. */
  record Settings(
      String timeZone,
      boolean largeVarTypes,
      scala.collection.immutable.Map<String, String> runner,
      Option<String> artifacts,
      Option<String> session)
      implements Serializable {
    static Settings of(SQLConf conf, PythonFunction function, SparkSession session) {
      // Workers with artifacts serve one query only. On Spark Connect every query has a number for its artifacts.
      Option<String> artifacts =
          function.pythonIncludes().isEmpty()
              ? Option.empty()
              : JobArtifactSet.getCurrentJobArtifactState().map(state -> state.uuid());
      return of(conf, artifacts, Option.when(conf.pythonWorkerLoggingEnabled(), session::sessionUUID));
    }

    static Settings of(SQLConf conf, Option<String> artifacts, Option<String> session) {
      return new Settings(
          conf.sessionLocalTimeZone(),
          conf.arrowUseLargeVarTypes(),
          ArrowPythonRunner.getPythonRunnerConfMap(conf),
          artifacts,
          session);
    }
  }

  private ArrowWorker(
      PythonFunction function,
      long resultId,
      StructType input,
      Structs structs,
      Settings settings,
      scala.collection.immutable.Map<String, SQLMetric> sizes) {
    super(
        Seqs.of(new Tuple2<>(new ChainedPythonFunctions(Seqs.of(function)), (Object) resultId)),
        EVAL_TYPE,
        new int[][] {{0}},
        new StructType().add("struct", input),
        settings.timeZone(),
        settings.largeVarTypes(),
        settings.runner(),
        sizes,
        settings.artifacts(),
        settings.session());
    BatchedPythonArrowInput.$init$(this);
    this.structs = structs;
  }

  /** The same function, with other environment variables, hence in a worker of its own, and with our reports. */
  static PythonFunction reporting(
      PythonFunction function, Map<String, String> environment, CollectionAccumulator<byte[]> reports) {
    return new SimplePythonFunction(
        function.command(),
        environment,
        function.pythonIncludes(),
        function.pythonExec(),
        function.pythonVer(),
        function.broadcastVars(),
        reports);
  }

  /** What the function returns for {@code rows} in the current task, as columns of {@code output}. */
  static Iterator<ColumnarBatch> run(
      PythonFunction function,
      long resultId,
      Iterator<InternalRow> rows,
      StructType input,
      StructType output,
      Settings settings,
      scala.collection.immutable.Map<String, SQLMetric> sizes) {
    TaskContext context = TaskContext.get();
    Structs structs = new Structs(rows);
    return new ArrowWorker(function, resultId, input, structs, settings, sizes)
        .compute(Iterator.single(structs), context.partitionId(), context)
        .map(batch -> flattened(batch, output));
  }

  private static ColumnarBatch flattened(ColumnarBatch batch, StructType output) {
    ArrowColumnVector struct = (ArrowColumnVector) batch.column(0);
    if (!DataType$.MODULE$.equalsIgnoreCompatibleNullability(struct.dataType(), output)) {
      throw new IllegalStateException(
          "the worker sent " + struct.dataType().simpleString() + " instead of " + output.simpleString());
    }
    ColumnVector[] columns = new ColumnVector[output.length()];
    for (int i = 0; i < columns.length; i++) {
      columns[i] = FlatColumn.of(struct.getChild(i));
    }
    return new ColumnarBatch(columns, batch.numRows());
  }

  /**
   * Sends messages to the worker at once. A task begins and ends with several small messages. By default a message that
   * was not acknowledged yet delays the next, and the worker acknowledges late what it has no answer to.
   */
  @Override
  @SuppressWarnings("rawtypes")
  public BasePythonRunner.Writer newWriter(
      SparkEnv env, PythonWorker worker, Iterator<Iterator<InternalRow>> input, int partition, TaskContext context) {
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
      VectorSchemaRoot root, ArrowStreamWriter writer, DataOutputStream out, Iterator<Iterator<InternalRow>> input) {
    structs.begin();
    return BatchedPythonArrowInput.super.writeNextBatchToArrowStream(root, writer, out, input);
  }

  /** No limit for Spark, which would add up the buffers of all columns after each row. */
  @Override
  public long maxBytesPerBatch() {
    return Integer.MAX_VALUE;
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

  /** Rows as the function gets them, each in a struct, as many for a batch as may be in one. */
  private static final class Structs extends AbstractIterator<InternalRow> {
    private static final long BATCH_BYTES = 16 << 20;
    private static final long ASSUMED_BYTES = 16 << 10; // of a row that does not know its size

    private final Iterator<InternalRow> rows;
    private long bytes;

    Structs(Iterator<InternalRow> rows) {
      this.rows = rows;
    }

    /** A batch begins. */
    void begin() {
      bytes = 0;
    }

    @Override
    public boolean hasNext() {
      return bytes < BATCH_BYTES && rows.hasNext();
    }

    @Override
    public InternalRow next() {
      InternalRow row = rows.next();
      bytes += row instanceof UnsafeRow sized ? sized.getSizeInBytes() : ASSUMED_BYTES;
      return new GenericInternalRow(new Object[] {row});
    }
  }
}
