package sparkmjoin;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The Python process that plans the batches of a query: Spark's own, run by a module of ours.
 *
 * <p>Starting Python and importing what it needs takes longer than some batches, so a process that has served a query
 * to its end waits for another one, for as long as {@link Planners} keeps it. It is told to change with a
 * {@code commit} of an offset that no query has: of Spark's messages to this process, that one carries a text and is of
 * no other use here.
 */
final class Planner extends PythonStreamingSourceRunner {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String CHANGE = "__mjoinPlanner";

  private final Object home;

  private Planner(PythonFunction source, StructType schema, Object home) {
    super(source, schema);
    this.home = home;
  }

  /** The planner of a query that begins. */
  static Planner of(PythonFunction source, StructType schema) {
    Map<String, String> environment = Map.copyOf(source.envVars());
    List<String> includes = List.copyOf(source.pythonIncludes());
    Object home = List.of(SparkEnv.get().conf().getAppId(), source.pythonExec(), environment, includes);
    for (Planner idle = Planners.take(home); idle != null; idle = Planners.take(home)) {
      try {
        idle.serve(source, schema);
        return idle;
      } catch (Exception e) {
        idle.end(); // a new process says it, if it is the query's fault
      }
    }
    PythonFunction copy = // `init` adds to the environment, which is the application's own
        new SimplePythonFunction(
            source.command(),
            new HashMap<>(environment),
            includes,
            source.pythonExec(),
            source.pythonVer(),
            source.broadcastVars(),
            source.accumulator());
    Planner fresh = new Planner(copy, schema, home);
    fresh.init();
    return fresh;
  }

  @Override
  public String workerModule() {
    return "spark_mjoin.planner_process";
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
    Planners.give(home, this);
  }

  /** End the process. */
  void end() {
    super.stop();
  }

  private void serve(PythonFunction source, StructType schema) {
    Object[] pickled = CollectionConverters.asJava(source.command()).toArray();
    byte[] bytes = new byte[pickled.length];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (byte) pickled[i];
    }
    change(Map.of("source", Base64.getEncoder().encodeToString(bytes), "schema", schema.json()));
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
