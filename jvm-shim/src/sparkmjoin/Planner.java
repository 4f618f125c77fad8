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

  /** All that the process was started with. */
  final Object home;

  private Planner(PythonFunction source, StructType schema, Object home) {
    super(source, schema);
    this.home = home;
  }

  /** The planner of a query that begins: of a class of sources, the pickled one. */
  static Planner of(PythonFunction source, byte[] pickled, StructType schema) {
    Map<String, String> environment = Map.copyOf(source.envVars());
    List<String> includes = List.copyOf(source.pythonIncludes());
    Object home = List.of(SparkEnv.get().conf().getAppId(), source.pythonExec(), environment, includes);
    for (Planner idle = Planners.take(home); idle != null; idle = Planners.take(home)) {
      try {
        String text = Base64.getEncoder().encodeToString(pickled);
        idle.change(Map.of("source", text, "schema", schema.json()));
        return idle;
      } catch (Exception e) {
        idle.end(); // a new process says it, if it is the query's fault
      }
    }
    PythonFunction function =
        new SimplePythonFunction(
            pickled,
            new HashMap<>(environment), // which `init` adds to
            includes,
            source.pythonExec(),
            source.pythonVer(),
            source.broadcastVars(),
            source.accumulator());
    Planner fresh = new Planner(function, schema, home);
    fresh.init();
    return fresh;
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
