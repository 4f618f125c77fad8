package sparkmjoin;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Iterator;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** Planners that have no query: a few of them, for as long as Spark keeps its own idle Python processes. */
final class Planners {
  private static final int MOST = 2;
  private static final long KEPT_SECONDS = 60;

  private static final Deque<Idle> IDLE = new ArrayDeque<>();
  private static final ScheduledExecutorService CLOCK =
      Executors.newSingleThreadScheduledExecutor(
          task -> {
            Thread thread = new Thread(task, "mjoin-planners");
            thread.setDaemon(true);
            return thread;
          });

  private Planners() {}

  /** The planner with that home that was returned last; null if there is none. */
  static Planner take(Object home) {
    synchronized (IDLE) {
      for (Iterator<Idle> all = IDLE.descendingIterator(); all.hasNext(); ) {
        Idle idle = all.next();
        if (idle.planner.home.equals(home)) {
          all.remove();
          return idle.planner;
        }
      }
      return null;
    }
  }

  static void give(Planner planner) {
    Idle given = new Idle(planner);
    synchronized (IDLE) {
      IDLE.addLast(given);
      if (IDLE.size() > MOST) {
        IDLE.removeFirst().planner.end();
      }
    }
    CLOCK.schedule(() -> expire(given), KEPT_SECONDS, TimeUnit.SECONDS);
  }

  private static void expire(Idle idle) {
    synchronized (IDLE) {
      if (!IDLE.removeIf(other -> other == idle)) {
        return; // it has got a query
      }
    }
    idle.planner.end();
  }

  /** One period in which a planner is idle. The next period is another object. */
  private record Idle(Planner planner) {}
}
