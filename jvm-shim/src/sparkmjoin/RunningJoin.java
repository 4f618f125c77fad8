package sparkmjoin;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.channels.ClosedChannelException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.function.Supplier;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkThrowable;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo;
import org.apache.spark.sql.streaming.StreamingQueryListener.QueryTerminatedEvent;
import org.apache.spark.util.CollectionAccumulator;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A join of a running query on the driver: the Python process that plans its batches, and where its partitions run.
 *
 * <p>Spark makes a new {@link JoinExec} for each batch, so what lasts longer is found here by the run of the query and
 * the number of the operator. It ends with the query, whether that was stopped, has failed or is complete. Spark
 * announces the end on its listener bus; an operator of its own would not hear of it.
 */
final class RunningJoin {
  private static final Logger LOG = LoggerFactory.getLogger(RunningJoin.class);
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String QUERY_ID = "sql.streaming.queryId"; // a local property of the query's thread
  private static final long ASKED_AGAIN_NANOS = 100_000_000L; // triggers may follow each other much faster
  private static final Map<Key, RunningJoin> RUNNING = new HashMap<>();

  private final Key key;
  private final String state;
  private final String queryId;
  private final SparkContext context;
  private final End end = new End();
  private final Workers workers = new Workers();
  private final CollectionAccumulator<byte[]> reports = new CollectionAccumulator<>();
  private volatile Map<String, String> words = Map.of();
  private Planner planner; // null before the start
  private List<Map<String, Long>> cameFrom = List.of(); // bytes of the last batch, by partition and host
  private Map<String, Long> moved = JoinMetrics.NOTHING_MOVED; // by the last shuffle, until it is asked for
  private long plannedNanos; // when the last batch was planned
  private long intervalNanos; // between the one before and that one
  private boolean gone; // the planner does not answer any more
  private long idleVersion = -1; // at which the planner had nothing to do
  private long idleNanos; // when it said so

  private record Key(UUID run, long operator) {
    static Key of(StatefulOperatorStateInfo info) {
      return new Key(info.queryRunId(), info.operatorId());
    }
  }

  private RunningJoin(StatefulOperatorStateInfo info, SparkContext context) {
    this.key = Key.of(info);
    this.state = Locations.forPython(info.checkpointLocation() + "/" + info.operatorId());
    this.queryId = context.getLocalProperty(QUERY_ID);
    this.context = context;
    context.register(reports);
    context.addSparkListener(end);
  }

  /** The join of this operator, which begins if this is the first batch of the run. */
  static RunningJoin of(StatefulOperatorStateInfo info, PythonFunction function, SparkContext context) {
    RunningJoin join;
    synchronized (RUNNING) {
      join = RUNNING.computeIfAbsent(Key.of(info), key -> new RunningJoin(info, context));
    }
    join.start(function);
    return join;
  }

  /** The join of this operator; null if its query has ended. */
  static RunningJoin find(StatefulOperatorStateInfo info) {
    synchronized (RUNNING) {
      return RUNNING.get(Key.of(info));
    }
  }

  private synchronized void start(PythonFunction function) {
    if (planner == null) {
      planner = Planner.ofJoin(function);
    }
  }

  /**
   * What each partition gets to know for the batch that makes the next version of version {@code from}, with or without
   * new rows.
   */
  synchronized byte[][] plan(long from, boolean arriving) {
    reports.reset(); // of the batch before
    Map<String, Object> end = new HashMap<>(point(from + 1));
    end.put("arriving", arriving);
    end.put("executors", Workers.executors());
    end.put("cameFrom", cameFrom);
    cameFrom = List.of();
    long now = System.nanoTime();
    intervalNanos = plannedNanos == 0 ? 0 : now - plannedNanos;
    plannedNanos = now;
    return answer(() -> planner.partitions(json(point(from)), json(end))._1());
  }

  /** The tasks of a batch have run. */
  synchronized void ran(JoinRDD batch) {
    cameFrom = batch.cameFrom();
    long here = 0;
    long away = 0;
    for (Shuffled.Ended end : batch.ended()) {
      here += end.here();
      away += end.moved();
    }
    double seconds = (intervalNanos == 0 ? System.nanoTime() - plannedNanos : intervalNanos) / 1e9;
    moved =
        Map.of(
            JoinMetrics.SHUFFLED,
            here + away,
            JoinMetrics.MOVED,
            away,
            JoinMetrics.MOVED_PER_SECOND,
            Math.round(away / seconds));
  }

  /** Whether there is work for a batch without new data. */
  synchronized boolean hasMore(long version) {
    long now = System.nanoTime();
    if (gone || version == idleVersion && now - idleNanos < ASKED_AGAIN_NANOS) {
      return false;
    }
    boolean more = asked(version);
    idleVersion = more ? -1 : version;
    idleNanos = now;
    return more;
  }

  private boolean asked(long version) {
    String said;
    try {
      said = planner.latestOffset(new Point(json(point(version))), ReadLimit.allAvailable());
    } catch (Exception e) {
      if (e instanceof SparkThrowable) {
        throw e; // an error of Python's, which has ended the process
      }
      LOG.warn("The planner of operator {} of run {} is gone", key.operator(), key.run(), e);
      gone = true; // the next batch with data says it
      return false;
    }
    return parsed(said).path("more").asBoolean();
  }

  /** Metrics of the last batch that are numbers. Those that are words are kept for {@link #words}. */
  synchronized Map<String, Long> metrics() {
    Map<String, String> metrics = new TreeMap<>();
    String said = answer(planner::reportLatestOffset);
    if (said != null) {
      JsonNode named = parsed(said).path("metrics");
      named.properties().forEach(one -> metrics.put(one.getKey(), one.getValue().asText()));
    }
    Map<String, String> found = new TreeMap<>();
    Map<String, Long> numbers = JoinMetrics.numbers(metrics, found::put);
    words = found;
    if (!numbers.isEmpty()) {
      numbers.putAll(moved);
      moved = JoinMetrics.NOTHING_MOVED;
    }
    return numbers;
  }

  /** Metrics of the last batch that are words, as plans and probing orders: a progress has no place for them. */
  Map<String, String> words() {
    return words;
  }

  /**
   * Of the batch that was planned last: places of the partitions, in Spark's spelling, or none to say where; and how
   * rows are divided among them, as workers read it.
   */
  record Arrangement(Map<Integer, String> places, String routing) {}

  synchronized Arrangement arrangement() {
    String asked = json(Map.of("places", true));
    String said = answer(() -> planner.latestOffset(new Point(asked), ReadLimit.allAvailable()));
    Map<Integer, String> places = new HashMap<>();
    JsonNode answered = parsed(said);
    answered.path("places").forEach(place -> places.put(places.size(), place.asText()));
    return new Arrangement(places, answered.required("routing").asText());
  }

  /** What the names of the worker pools begin with. */
  String pool() {
    return workers.pool();
  }

  /** Where tasks receive the reports of their workers. */
  CollectionAccumulator<byte[]> reports() {
    return reports;
  }

  /** What the planner says. An error of Python's stays as it is; that of a broken connection says what has broken. */
  private static <T> T answer(Supplier<T> asked) {
    try {
      return asked.get();
    } catch (Exception e) {
      // Scala throws IOException without declaring it. A channel is closed when the query was stopped meanwhile.
      if (e instanceof IOException && !(e instanceof ClosedChannelException)) {
        throw new IllegalStateException("the Python process that plans the join has ended: resume the query", e);
      }
      throw e;
    }
  }

  private Map<String, Object> point(long version) {
    return Map.of("state", state, "queryId", queryId, "version", version);
  }

  private static String json(Object value) {
    try {
      return JSON.writeValueAsString(value);
    } catch (JsonProcessingException e) {
      throw new IllegalStateException(e);
    }
  }

  private static JsonNode parsed(String said) {
    try {
      return JSON.readTree(said);
    } catch (JsonProcessingException e) {
      throw new IllegalStateException("the planner of a join answered " + said, e);
    }
  }

  private void stop() {
    synchronized (RUNNING) {
      if (!RUNNING.remove(key, this)) {
        return;
      }
    }
    Thread stopping = new Thread(this::release, "mjoin-stop"); // the bus must not wait for Python
    stopping.setDaemon(true);
    stopping.start();
  }

  private synchronized void release() {
    context.removeSparkListener(end);
    workers.release();
    if (planner != null) {
      planner.stop();
    }
  }

  /** A version of the state, as the planner's offset. */
  private static final class Point extends Offset {
    private final String json;

    Point(String json) {
      this.json = json;
    }

    @Override
    public String json() {
      return json;
    }
  }

  /** Hears of the end of the query, or of the application. */
  private final class End extends SparkListener {
    @Override
    public void onOtherEvent(SparkListenerEvent event) {
      if (event instanceof QueryTerminatedEvent terminated && terminated.runId().equals(key.run())) {
        stop();
      }
    }

    @Override
    public void onApplicationEnd(SparkListenerApplicationEnd event) {
      stop();
    }
  }
}
