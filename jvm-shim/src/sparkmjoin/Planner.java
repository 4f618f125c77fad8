package sparkmjoin;

import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner;
import org.apache.spark.sql.types.StructType;

/** The Python process that plans the batches of a query: Spark's own, run by a module of ours that starts sooner. */
final class Planner extends PythonStreamingSourceRunner {
  Planner(PythonFunction source, StructType schema) {
    super(source, schema);
  }

  @Override
  public String workerModule() {
    return "spark_mjoin.planner_process";
  }
}
