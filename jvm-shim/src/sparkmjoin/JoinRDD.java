package sparkmjoin;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.Dependency;
import org.apache.spark.NarrowDependency;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.Partition;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo;
import org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.CollectionAccumulator;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.AbstractIterator;
import scala.collection.Iterator$;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.reflect.ClassTag$;
import scala.reflect.ClassTag;
import scala.runtime.AbstractFunction1;

/**
 * One batch of a join: a task for each partition, with input or without.
 *
 * <p>The function's first row is {@code (partition, -1, plan)}; the plan is what the planner says about the batch. It
 * does not travel as a local property, because tasks on one executor may share these. Each task runs in the Python
 * worker and, if it can, on the executor of its partition (see {@link Workers}).
 *
 * <p>A task goes through all of its input, even when nobody wants the rest of its results: the state needs the rows.
 */
final class JoinRDD extends RDD<ColumnarBatch> {
  private static final Logger LOG = LoggerFactory.getLogger(JoinRDD.class);
  private static final ClassTag<ColumnarBatch> BATCHES = ClassTag$.MODULE$.apply(ColumnarBatch.class);
  private static final ClassTag<InternalRow> ROWS = ClassTag$.MODULE$.apply(InternalRow.class);
  private static final byte PLAN = -1; // in place of the number of an input

  private final Task task;
  private final transient byte[][] plans;
  private final transient Map<Integer, String> places;

  /** What all tasks of a batch have in common. */
  record Task(
      StatefulOperatorStateInfo info,
      PythonFunction function,
      long resultId,
      String pool,
      StructType input,
      StructType output,
      ArrowWorker.Settings settings,
      boolean validated,
      Routing onward, // null where the results go to no other stage
      CollectionAccumulator<byte[]> reports,
      CollectionAccumulator<long[]> ended,
      HashMap<String, SQLMetric> metrics,
      scala.collection.immutable.Map<String, SQLMetric> sizes)
      implements Serializable {}

  /** A partition of the join; {@code input} is null where it has none. */
  private record Slot(int index, Partition input, byte[] plan) implements Partition {}

  JoinRDD(RDD<InternalRow> input, byte[][] plans, Map<Integer, String> places, Task task) {
    super(input.sparkContext(), dependencies(input, plans.length), BATCHES);
    this.plans = plans;
    this.places = places;
    this.task = task;
  }

  /**
   * In a batch without new data, Spark's optimizer replaces all that is below the join by nothing, in no partition or
   * in one. The first task makes sure that this one is empty.
   */
  private static Seq<Dependency<?>> dependencies(RDD<InternalRow> input, int partitions) {
    int found = input.getNumPartitions();
    if (found == partitions) {
      return Seqs.of(new OneToOneDependency<>(input));
    }
    if (found > 1) {
      throw new IllegalStateException(
          "the input of the join has " + found + " partitions, and the join has " + partitions);
    }
    return found == 0 ? Seqs.of() : Seqs.of(new First<>(input));
  }

  /** The first partition comes from the only one; the others come from none. */
  private static final class First<T> extends NarrowDependency<T> {
    First(RDD<T> input) {
      super(input);
    }

    @Override
    public Seq<Object> getParents(int partition) {
      return partition == 0 ? Seqs.of(0) : Seqs.of();
    }
  }

  @Override
  public Partition[] getPartitions() {
    Partition[] inputs = dependencies().isEmpty() ? new Partition[0] : firstParent(ROWS).partitions();
    Partition[] all = new Partition[plans.length];
    for (int p = 0; p < all.length; p++) {
      all[p] = new Slot(p, p < inputs.length ? inputs[p] : null, plans[p]);
    }
    return all;
  }

  @Override
  public Seq<String> getPreferredLocations(Partition partition) {
    String place = places.get(partition.index());
    return place == null ? Seqs.of() : Seqs.of(place);
  }

  @Override
  public Iterator<ColumnarBatch> compute(Partition partition, TaskContext context) {
    Slot slot = (Slot) partition;
    Iterator<InternalRow> rows = first(slot).concat(() -> input(slot, context));
    Map<String, String> environment = new HashMap<>(task.function().envVars());
    environment.put("MJOIN_WORKER", task.pool() + "-" + slot.index());
    if (task.onward() != null) {
      task.onward().pass();
    }
    Results results =
        new Results(
            slot.index(),
            context,
            ArrowWorker.run(
                ArrowWorker.reporting(task.function(), environment, task.reports()),
                task.resultId(),
                rows,
                task.input(),
                task.output(),
                task.settings(),
                task.sizes()));
    // Called before the listener that the worker has registered, so the worker is still there.
    context.addTaskCompletionListener(
        ending -> {
          if (!ending.isFailed() && !ending.isInterrupted()) {
            results.drain();
          }
        });
    return results;
  }

  /** Run the tasks that have not come to their end in any job so far; nobody wants their results. */
  void complete() {
    List<Object> missing = new ArrayList<>();
    Map<Integer, Shuffled.Ended> ended = Shuffled.last(task.ended());
    for (int p = 0; p < task.info().numPartitions(); p++) {
      if (!ended.containsKey(p)) {
        missing.add(p);
      }
    }
    if (!missing.isEmpty()) {
      LOG.info("The sink has not read partitions {} of the join: their rows are taken in now", missing);
      sparkContext().runJob(this, new Drain(), Seqs.of(missing.toArray()), ClassTag$.MODULE$.Boolean());
    }
  }

  /** The bytes that the shuffle had for each partition, by the host where they were. */
  List<Map<String, Long>> cameFrom() {
    return Shuffled.byHost(this, plans.length);
  }

  /** The ends of its tasks, with the bytes that each has read. */
  Collection<Shuffled.Ended> ended() {
    return Shuffled.last(task.ended()).values();
  }

  /** Goes through the results of a task. */
  private static final class Drain extends AbstractFunction1<Iterator<ColumnarBatch>, Object> implements Serializable {
    @Override
    public Object apply(Iterator<ColumnarBatch> results) {
      while (results.hasNext()) {
        results.next();
      }
      return true;
    }
  }

  private static Iterator<InternalRow> first(Slot slot) {
    return Iterator$.MODULE$.single(new GenericInternalRow(new Object[] {slot.index(), PLAN, slot.plan()}));
  }

  private Iterator<InternalRow> input(Slot slot, TaskContext context) {
    if (slot.input() == null) {
      return Iterator$.MODULE$.<InternalRow>empty();
    }
    Iterator<InternalRow> rows = firstParent(ROWS).iterator(slot.input(), context);
    if (firstParent(ROWS).getNumPartitions() < task.info().numPartitions() && rows.hasNext()) {
      throw new IllegalStateException("the input of the join has rows, and all of them are in one partition");
    }
    return rows;
  }

  /** What a worker returns, and at the end what it reports. */
  private final class Results extends AbstractIterator<ColumnarBatch> {
    private final int partition;
    private final TaskContext context;
    private final Iterator<ColumnarBatch> batches;
    private boolean ended;

    Results(int partition, TaskContext context, Iterator<ColumnarBatch> batches) {
      this.partition = partition;
      this.context = context;
      this.batches = batches;
    }

    @Override
    public boolean hasNext() {
      if (!ended && !batches.hasNext()) {
        ended = true;
        report();
      }
      return !ended;
    }

    @Override
    public ColumnarBatch next() {
      ColumnarBatch batch = batches.next();
      task.metrics().get(JoinMetrics.RESULTS).add(batch.numRows());
      return batch;
    }

    void drain() {
      while (hasNext()) {
        batches.next();
      }
    }

    private void report() {
      StatefulOperatorStateInfo info = task.info();
      Shuffled.Ended end = Shuffled.Ended.of(partition, context);
      task.ended().add(end.numbers());
      if (task.validated()) { // so Spark sees it when a function of foreachBatch leaves out partitions
        String name = StateStoreId.DEFAULT_STORE_NAME();
        StateStoreId store = new StateStoreId(info.checkpointLocation(), info.operatorId(), partition, name);
        StateStoreCoordinatorRef.forExecutor(SparkEnv.get())
            .reportStateStoreCommit(
                new StateStoreProviderId(store, info.queryRunId()), info.storeVersion() + 1, name);
      }
      Map<String, Long> reported = new HashMap<>();
      TaskReports.values(task.reports()).forEach(value -> reported.put(value.name(), value.value()));
      add(reported);
      add(JoinMetrics.ofSpark(reported));
      add(Map.of(JoinMetrics.INSTANCES, 1L));
      add(Map.of(JoinMetrics.SHUFFLED, end.here() + end.moved(), JoinMetrics.MOVED, end.moved()));
    }

    private void add(Map<String, Long> values) {
      values.forEach(
          (name, value) -> {
            SQLMetric metric = task.metrics().get(name);
            if (metric != null) { // metrics of single inputs are not shown
              metric.add(value);
            }
          });
    }
  }
}
