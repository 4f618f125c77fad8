package sparkmjoin;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import net.razorvine.pickle.Unpickler;
import org.apache.spark.util.CollectionAccumulator;

/**
 * The report of a task's Python worker, sent to the reader in the same task when the worker is done.
 *
 * <p>It travels as a Python accumulator: the worker sends pairs of an accumulator's number and a value. Spark also
 * collects the pairs of all tasks on the driver, which has no use for them: it reads what was committed. The
 * accumulator is of a class of Spark's own because the thread that receives task results does not see classes that were
 * added later.
 */
final class TaskReports {
  /** The number under which {@code doors/worker.py} reports; others may use the same channel. */
  private static final long NUMBER = -77001;

  private TaskReports() {}

  /** The numbers of this task that have arrived; none before its end. */
  static List<ScanMetrics.Value> values(CollectionAccumulator<byte[]> received) {
    List<ScanMetrics.Value> values = new ArrayList<>();
    for (byte[] update : received.value()) {
      try {
        Object[] pair = (Object[]) new Unpickler().loads(update);
        if (((Number) pair[0]).longValue() == NUMBER) {
          ((Map<?, ?>) pair[1])
              .forEach((name, n) -> values.add(new ScanMetrics.Value((String) name, ((Number) n).longValue())));
        }
      } catch (IOException e) {
        throw new IllegalStateException("the report of a Python worker is no pickle", e);
      }
    }
    return values;
  }
}
