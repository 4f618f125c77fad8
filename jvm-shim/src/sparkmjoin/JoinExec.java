package sparkmjoin;

import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet$;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.physical.Distribution;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning;
import org.apache.spark.sql.catalyst.plans.physical.UnspecifiedDistribution$;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.LocalTableScanExec;
import org.apache.spark.sql.execution.RowToColumnarExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOpStateStoreCheckpointInfo;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorCustomMetric;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo;
import org.apache.spark.sql.execution.streaming.operators.stateful.StreamingGlobalLimitExec;
import org.apache.spark.sql.execution.streaming.state.OperatorStateMetadata;
import org.apache.spark.sql.execution.streaming.state.StateSchemaValidationResult;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StateOperatorProgress;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.CollectionAccumulator;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.List$;
import scala.collection.immutable.List;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.BoxedUnit;

/**
 * A join, as a stateful operator of a streaming query.
 *
 * <p>To Spark it is an operator whose state store has a version per batch. To Python it is a {@code mapInArrow} whose
 * function knows its partition and its version. There is no state store: the function keeps its state where Spark
 * would, under {@code state/<operator>} of the checkpoint.
 *
 * <p>Spark tells an operator where its state is, and its version, only if it knows the operator's class. It does so by
 * calling {@code copy}. So this is a subclass of the smallest class that Spark knows, and overrides all that this one
 * does.
 */
public final class JoinExec extends StreamingGlobalLimitExec {
  static final String END_OF_BATCH = "markMicroBatchEnd"; // of Spark's MicroBatchExecution

  private final JoinFunction function;
  private transient JoinRDD running; // null before the execution
  private transient Routing onward; // of the results, if this is not the last stage; known from the execution on

  /** For Spark too, which copies nodes by their constructors. */
  public JoinExec(
      long unused,
      SparkPlan child,
      Option<StatefulOperatorStateInfo> stateInfo,
      Option<OutputMode> outputMode,
      JoinFunction function) {
    super(unused, child, stateInfo, outputMode);
    this.function = function;
  }

  // --- as a node of a plan

  /** Spark calls this to say where the state is. The join has its own number of partitions, not the session's. */
  @Override
  public StreamingGlobalLimitExec copy(
      long unused, SparkPlan child, Option<StatefulOperatorStateInfo> stateInfo, Option<OutputMode> outputMode) {
    Option<StatefulOperatorStateInfo> own =
        stateInfo.map(
            info ->
                new StatefulOperatorStateInfo(
                    info.checkpointLocation(),
                    info.queryRunId(),
                    info.operatorId(),
                    info.storeVersion(),
                    function.partitions(),
                    info.stateSchemaMetadata(),
                    info.stateStoreCkptIds()));
    return new JoinExec(unused, child, own, outputMode, function);
  }

  /** The join takes rows and returns columns. Spark thinks that it takes columns as well, and converts them. */
  @Override
  public StreamingGlobalLimitExec withNewChildInternal(SparkPlan child) {
    SparkPlan rows = child instanceof RowToColumnarExec converted ? converted.child() : child;
    return new JoinExec(streamLimit(), rows, stateInfo(), outputMode(), function);
  }

  /** What the constructor takes beyond the fields of the superclass. */
  @Override
  public Seq<Object> otherCopyArgs() {
    return Seqs.of(function);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof JoinExec join && super.equals(join) && function.equals(join.function);
  }

  @Override
  public int hashCode() {
    return 31 * super.hashCode() + function.hashCode();
  }

  @Override
  public String nodeName() {
    return "MJoin";
  }

  /** What a plan shows: {@code query.explain()} shows what the last batch has said, the Spark UI the one before. */
  @Override
  public Iterator<Object> stringArgs() {
    RunningJoin join = stateInfo().isEmpty() ? null : RunningJoin.find(getStateInfo());
    if (join == null || join.words().isEmpty()) {
      return Seqs.<Object>of(output(), stateInfo()).iterator();
    }
    return Seqs.<Object>of(output(), stateInfo(), join.words()).iterator();
  }

  @Override
  public Seq<Attribute> output() {
    return function == null ? child().output() : function.output(); // the superclass's constructor asks
  }

  @Override
  public AttributeSet producedAttributes() {
    return AttributeSet$.MODULE$.apply(Seqs.<Expression>widened(output()));
  }

  @Override
  public Partitioning outputPartitioning() {
    return new UnknownPartitioning(function.partitions());
  }

  /** The input was shuffled by the join's own hash. */
  @Override
  public Seq<Distribution> requiredChildDistribution() {
    return Seqs.of(UnspecifiedDistribution$.MODULE$);
  }

  @Override
  public boolean supportsColumnar() {
    return true;
  }

  // --- as a stateful operator without a state store

  @Override
  public String shortName() {
    return function == null ? "mjoin" : function.name(); // the superclass's constructor may ask
  }

  @Override
  public List<StateSchemaValidationResult> validateAndMaybeEvolveStateSchema(
      Configuration conf, long batchId, int version) {
    return List$.MODULE$.empty();
  }

  @Override
  public List<List<String>> stateSchemaList(
      List<StateSchemaValidationResult> results, Option<OperatorStateMetadata> old) {
    return List$.MODULE$.empty();
  }

  /** For checkpoints that name the files of each version. The join's state knows these itself. */
  @Override
  public StatefulOpStateStoreCheckpointInfo[] getStateStoreCheckpointInfo() {
    Option<String[]> id = Option.apply(new String[] {shortName()});
    StatefulOpStateStoreCheckpointInfo[] all = new StatefulOpStateStoreCheckpointInfo[function.partitions()];
    for (int p = 0; p < all.length; p++) {
      all[p] = new StatefulOpStateStoreCheckpointInfo(p, getStateInfo().storeVersion() + 1, id, id);
    }
    return all;
  }

  /**
   * The join promises nothing about event times of its results: a result may have the time of its oldest row, and
   * results from disk come later. An operator above that needs a watermark takes it from {@code withWatermark} on the
   * results.
   */
  @Override
  public Option<Object> produceOutputWatermark(long watermark) {
    return Option.empty();
  }

  /** Spark asks the node of the last batch, before every trigger. */
  @Override
  public boolean shouldRunAnotherBatch(long watermark) {
    RunningJoin join = RunningJoin.find(getStateInfo());
    return join != null && join.hasMore(getStateInfo().storeVersion() + 1);
  }

  @Override
  public Seq<StatefulOperatorCustomMetric> customStatefulOperatorMetrics() {
    return JoinMetrics.own();
  }

  /** Numbers of the version that the batch has committed: a task that ran twice counts once. */
  @Override
  public StateOperatorProgress getProgress() {
    RunningJoin join = RunningJoin.find(getStateInfo());
    Map<String, Long> committed = join == null ? Map.of() : join.metrics();
    if (committed.isEmpty()) {
      return super.getProgress();
    }
    JoinMetrics.ofSpark(committed).forEach((name, value) -> longMetric(name).set(value.longValue()));
    longMetric(JoinMetrics.INSTANCES).set((long) function.partitions());
    StateOperatorProgress progress = super.getProgress();
    progress.customMetrics().clear();
    progress.customMetrics().putAll(committed);
    return progress;
  }

  // --- execution

  /**
   * Spark goes through the plan of a batch when the sink has it, and before it records that the batch is done: it looks
   * for watermarks. A function of {@code foreachBatch} may have left out partitions by then. Their tasks are run now,
   * because nobody can ask for their input after that. An error ends the query, and it resumes with this batch.
   */
  @Override
  public void foreach(Function1<SparkPlan, BoxedUnit> action) {
    if (running != null && isEndOfBatch()) {
      running.complete();
      RunningJoin join = RunningJoin.find(getStateInfo());
      if (join != null) {
        join.ran(running);
      }
    }
    super.foreach(action);
  }

  private static boolean isEndOfBatch() {
    return StackWalker.getInstance().walk(all -> all.anyMatch(frame -> frame.getMethodName().equals(END_OF_BATCH)));
  }

  /** How the results are divided, where they go to another stage. That one says it before it executes this node. */
  void sendBy(Routing routing) {
    onward = routing.after(onward);
  }

  @Override
  public RDD<ColumnarBatch> doExecuteColumnar() {
    StatefulOperatorStateInfo info = getStateInfo();
    RunningJoin join = RunningJoin.of(info, function.udf().func(), sparkContext());
    byte[][] plans = join.plan(info.storeVersion(), hasNewData());
    if (plans.length != function.partitions()) {
      throw new IllegalStateException(
          "the join has " + function.partitions() + " partitions, and was planned for " + plans.length);
    }
    RunningJoin.Arrangement arranged = join.arrangement();
    new Routing(function.token(), arranged.routing()).tell(child());
    RDD<InternalRow> input = child().execute();
    CollectionAccumulator<long[]> ended = new CollectionAccumulator<>();
    sparkContext().register(ended);
    running =
        new JoinRDD(
            input,
            plans,
            arranged.places(),
            new JoinRDD.Task(
                info,
                function.udf().func(),
                function.udf().resultId().id(),
                join.pool(),
                child().schema(),
                (StructType) function.udf().dataType(),
                ArrowWorker.Settings.of(conf(), function.udf().func(), session()),
                conf().stateStoreCommitValidationEnabled(),
                onward,
                join.reports(),
                ended,
                JoinMetrics.counted(CollectionConverters.asJava(metrics())),
                pythonMetrics()));
    return running;
  }

  /**
   * Whether some stream below has new data. Where it has none, Spark puts an empty table in its place. In a batch
   * without new data an earlier stage may still send rows from disk. The join takes them, and its disk work is planned
   * as if none came.
   */
  private boolean hasNewData() {
    return collectLeaves().exists(leaf -> isStream(leaf) && !isEmptyTable(leaf) && !isRestart(leaf));
  }

  private static boolean isStream(SparkPlan leaf) {
    return leaf.logicalLink().isEmpty() || leaf.logicalLink().get().isStreaming();
  }

  private static boolean isEmptyTable(SparkPlan leaf) {
    return leaf instanceof LocalTableScanExec table && table.rows().isEmpty();
  }

  private static boolean isRestart(SparkPlan leaf) {
    return leaf instanceof MicroBatchScanExec scan && scan.stream() instanceof RestartStream;
  }

  /** Spark puts the conversion to rows into the plan by itself; this is for callers that do not. */
  @Override
  public RDD<InternalRow> doExecute() {
    return new ColumnarToRowExec(this).execute();
  }
}
