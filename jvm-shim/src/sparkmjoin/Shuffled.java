package sparkmjoin;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.Dependency;
import org.apache.spark.MapOutputTrackerMaster;
import org.apache.spark.NarrowDependency;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.ShuffleStatus;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.executor.ShuffleReadMetrics;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.util.CollectionAccumulator;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/** What the shuffle before a join has brought to its partitions, and from where. */
final class Shuffled {
  private Shuffled() {}

  /** The end of a task, with the bytes that it has read: those of its own host, and those of others. */
  record Ended(int partition, long here, long moved) {
    static Ended of(int partition, TaskContext context) {
      ShuffleReadMetrics read = context.taskMetrics().shuffleReadMetrics();
      return new Ended(partition, read.localBytesRead(), read.remoteBytesRead());
    }

    /** As an accumulator takes it: the thread that receives its values knows no classes of a jar that was added. */
    long[] numbers() {
      return new long[] {partition, here, moved};
    }
  }

  /** The last end of each partition: one that ran twice has read its input twice, and counts once. */
  static Map<Integer, Ended> last(CollectionAccumulator<long[]> ends) {
    Map<Integer, Ended> last = new HashMap<>();
    ends.value().forEach(end -> last.put((int) end[0], new Ended((int) end[0], end[1], end[2])));
    return last;
  }

  /** The bytes for each partition, by the host of their senders. They are known about: Spark keeps them in one byte. */
  static List<Map<String, Long>> byHost(RDD<?> input, int partitions) {
    List<Map<String, Long>> all = new ArrayList<>();
    for (int p = 0; p < partitions; p++) {
      all.add(new HashMap<>());
    }
    Integer shuffle = shuffle(input);
    if (shuffle != null && SparkEnv.get().mapOutputTracker() instanceof MapOutputTrackerMaster tracker) {
      Option<ShuffleStatus> status = tracker.shuffleStatuses().get(shuffle);
      for (MapStatus sent : status.isEmpty() ? new MapStatus[0] : status.get().mapStatuses()) {
        for (int p = 0; sent != null && p < partitions; p++) {
          long bytes = sent.getSizeForBlock(p);
          if (bytes > 0) {
            all.get(p).merge(sent.location().host(), bytes, Long::sum);
          }
        }
      }
    }
    return all;
  }

  /** The number of the shuffle that some rows come from; null where there is none. */
  private static Integer shuffle(RDD<?> rows) {
    for (RDD<?> at = rows; at != null; ) {
      RDD<?> before = null;
      for (Dependency<?> one : CollectionConverters.asJava(at.dependencies())) {
        if (one instanceof ShuffleDependency<?, ?, ?> found) {
          return found.shuffleId();
        }
        before = one instanceof NarrowDependency<?> ? one.rdd() : before;
      }
      at = before;
    }
    return null;
  }
}
