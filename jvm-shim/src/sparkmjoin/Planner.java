package sparkmjoin;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner;
import org.apache.spark.sql.types.StructType;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * The Python process that plans the batches of a query: Spark's own, run by a module of ours.
 *
 * <p>Starting Python and importing what it needs takes longer than some batches, so a process that has served a query
 * to its end waits for another one, for as long as {@link Planners} keeps it. The message to change is a
 * {@code commit} of an offset that no query has: of Spark's messages to this process, that one carries a text and is of
 * no other use here.
 */
final class Planner extends PythonStreamingSourceRunner {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String CHANGE = "__mjoinPlanner";

  /** Pickled {@code NodeSource()}: a process begins with a source, and that of a join gets its function next. */
  private static final byte[] NODE_SOURCE =
      "cspark_mjoin.doors.node\nNodeSource\n(tR.".getBytes(StandardCharsets.US_ASCII);
  private static final StructType NODE_SCHEMA = new StructType().add("nothing", "int");

  /** All that the process was started with. */
  final Object home;

  private Planner(PythonFunction source, StructType schema, Object home) {
    super(source, schema);
    this.home = home;
  }

  /** The planner of a query that begins: of a class of sources, the pickled one. */
  static Planner of(PythonFunction source, byte[] pickled, StructType schema) {
    Planner idle = idle(source, Map.of("source", text(pickled), "schema", schema.json()));
    return idle == null ? fresh(source, pickled, schema) : idle;
  }

  /** The planner of a join that begins, by the function that its tasks run. */
  static Planner ofJoin(PythonFunction function) {
    Map<String, String> query = Map.of("function", text(bytes(function.command())));
    Planner idle = idle(function, query);
    if (idle != null) {
      return idle;
    }
    Planner fresh = fresh(function, NODE_SOURCE, NODE_SCHEMA);
    try {
      fresh.change(query);
    } catch (Exception e) {
      fresh.end();
      throw e;
    }
    return fresh;
  }

  /** A process that waits for a query and can serve this one; null if there is none. */
  private static Planner idle(PythonFunction function, Map<String, String> query) {
    Object home = home(function);
    for (Planner idle = Planners.take(home); idle != null; idle = Planners.take(home)) {
      try {
        idle.change(query);
        return idle;
      } catch (Exception e) {
        idle.end(); // a new process says it, if it is the query's fault
      }
    }
    return null;
  }

  private static Planner fresh(PythonFunction source, byte[] pickled, StructType schema) {
    PythonFunction function =
        new SimplePythonFunction(
            pickled,
            new HashMap<>(source.envVars()), // which `init` adds to
            source.pythonIncludes(),
            source.pythonExec(),
            source.pythonVer(),
            source.broadcastVars(),
            source.accumulator());
    Planner fresh = new Planner(function, schema, home(source));
    fresh.init();
    return fresh;
  }

  private static Object home(PythonFunction source) {
    Map<String, String> environment = Map.copyOf(source.envVars());
    List<String> includes = List.copyOf(source.pythonIncludes());
    return List.of(SparkEnv.get().conf().getAppId(), source.pythonExec(), environment, includes);
  }

  private static String text(byte[] bytes) {
    return Base64.getEncoder().encodeToString(bytes);
  }

  private static byte[] bytes(Seq<Object> values) {
    byte[] bytes = new byte[values.length()];
    Iterator<Object> next = values.iterator();
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (Byte) next.next();
    }
    return bytes;
  }

  @Override
  public String workerModule() {
    return "spark_mjoin.doors.planner_process";
  }

  /** The query has ended. A process that does not answer any more is ended as well. */
  @Override
  public void stop() {
    try {
      change(Map.of());
    } catch (Exception e) {
      end();
      return;
    }
    Planners.give(this);
  }

  /** End the process. */
  void end() {
    super.stop();
  }

  /** Let the process serve another query, or none. */
  private void change(Map<String, String> query) {
    try {
      commit(JSON.writeValueAsString(Map.of(CHANGE, query)));
    } catch (JsonProcessingException e) {
      throw new IllegalStateException(e);
    }
  }
}
