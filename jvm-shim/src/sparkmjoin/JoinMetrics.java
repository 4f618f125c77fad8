package sparkmjoin;

import java.math.BigDecimal;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BiConsumer;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorCustomMetric;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorCustomSumMetric;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** The counters of {@link JoinExec}: our own, and what Spark's counters of stateful operators mean for a join. */
final class JoinMetrics {
  /** Spark's counter of rows that an operator returns. */
  static final String RESULTS = "numOutputRows";

  /** Spark's counter of state stores: here, of partitions that have committed their state. */
  static final String INSTANCES = "numStateStoreInstances";

  /** Spark's timer of commits. A task measures its own: no committed state says how long it took to commit it. */
  static final String COMMITTING = "commitTimeMs";

  /** The bytes that the shuffle has brought in a batch. */
  static final String SHUFFLED = "shuffledBytes";

  /** Of these, what came from other hosts. */
  static final String MOVED = "bytesMoved";

  /** The same for each second between this batch and the one before. */
  static final String MOVED_PER_SECOND = "bytesMovedPerSecond";

  static final Map<String, Long> NOTHING_MOVED = Map.of(SHUFFLED, 0L, MOVED, 0L, MOVED_PER_SECOND, 0L);

  /** Behind the name of a metric that is a fraction, and here a whole number: Spark's progress has no others. */
  private static final String MILLIONTHS = "Millionths";

  /** How the names of metrics end that count the rows of one input. */
  private static final String INPUT_ROWS = "NumInputRows";

  private JoinMetrics() {}

  /** Our own, under the names and with the words that the scan node of the source has. */
  static Seq<StatefulOperatorCustomMetric> own() {
    Map<String, String> described = new TreeMap<>(ScanMetrics.descriptions());
    described.put(SHUFFLED, "bytes shuffled to the join");
    described.put(MOVED, "bytes shuffled to the join from other hosts");
    return CollectionConverters.<StatefulOperatorCustomMetric>asScala(
            described.entrySet().stream()
                .<StatefulOperatorCustomMetric>map(
                    entry -> new StatefulOperatorCustomSumMetric(entry.getKey(), entry.getValue()))
                .toList())
        .toList();
  }

  /** Of the counters of a node, those that its tasks add to. */
  static HashMap<String, SQLMetric> counted(Map<String, SQLMetric> all) {
    HashMap<String, SQLMetric> counted = new HashMap<>(all);
    Set<String> names = new HashSet<>(ScanMetrics.descriptions().keySet());
    names.addAll(ofSpark(Map.of()).keySet());
    names.addAll(Set.of(RESULTS, INSTANCES, COMMITTING, SHUFFLED, MOVED));
    counted.keySet().retainAll(names);
    return counted;
  }

  /** The metrics that are numbers; {@code others} receives those that are none. */
  static Map<String, Long> numbers(Map<String, String> metrics, BiConsumer<String, String> others) {
    Map<String, Long> numbers = new TreeMap<>();
    metrics.forEach(
        (name, value) -> {
          try {
            BigDecimal number = new BigDecimal(value);
            if (value.indexOf('.') < 0) {
              numbers.put(name, number.longValueExact());
            } else {
              numbers.put(name + MILLIONTHS, number.movePointRight(6).longValue());
            }
          } catch (NumberFormatException e) {
            others.accept(name, value);
          }
        });
    return numbers;
  }

  /** Spark's counters, from ours. */
  static Map<String, Long> ofSpark(Map<String, Long> own) {
    Map<String, Long> all = new HashMap<>();
    all.put("numTotalStateRows", sum(own, "numRowsTotal"));
    all.put(
        "numUpdatedStateRows",
        own.entrySet().stream().filter(e -> e.getKey().endsWith(INPUT_ROWS)).mapToLong(Map.Entry::getValue).sum());
    all.put("numRemovedStateRows", sum(own, "rowsPurged", "rowsShrunk"));
    all.put("numRowsDroppedByWatermark", sum(own, "rowsLate"));
    all.put("stateMemory", sum(own, "memoryUsedBytes"));
    all.put("allUpdatesTimeMs", sum(own, "memoryToMemoryTimeMs", "diskToMemoryTimeMs", "diskToDiskTimeMs"));
    return all;
  }

  private static long sum(Map<String, Long> own, String... names) {
    long sum = 0;
    for (String name : names) {
      sum += own.getOrDefault(name, 0L);
    }
    return sum;
  }
}
