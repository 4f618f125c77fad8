package sparkmjoin;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.exchange.Exchange;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo;
import org.apache.spark.sql.execution.streaming.operators.stateful.StreamingGlobalLimitExec;
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution;
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecutionContext;
import org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorRef;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;
import org.apache.spark.sql.streaming.StateOperatorProgress;
import scala.Option;
import scala.collection.immutable.Seq;

/**
 * Whether this Spark has what {@link JoinExec} and {@link SendExec} rely on. A vendor's Spark may differ from the
 * release of its number.
 *
 * <p>They were compiled against stubs of their superclasses. A method that the real one has not got would not
 * be overridden, and nobody would notice before a query has wrong results.
 */
final class NodeCheck {
  private NodeCheck() {}

  /** Throws an error that says what is missing. */
  static void require() {
    List<String> missing = new ArrayList<>();
    try {
      collect(missing);
    } catch (LinkageError e) {
      missing.add(e.toString());
    }
    if (!missing.isEmpty()) {
      throw new UnsupportedOperationException(
          "the jar of spark_mjoin cannot add its operator to this Spark, which lacks "
              + String.join(", ", missing)
              + ": use a release of Apache Spark of the same version");
    }
  }

  private static void collect(List<String> missing) {
    Class<?> option = Option.class;
    compare(missing, JoinExec.class, StreamingGlobalLimitExec.class);
    need(missing, StreamingGlobalLimitExec.class, long.class, SparkPlan.class, option, option);
    compare(missing, SendExec.class, MapInArrowExec.class);
    need(missing, MapInArrowExec.class, Expression.class, Seq.class, SparkPlan.class, boolean.class, option);
    need(
        missing,
        StatefulOperatorStateInfo.class,
        String.class, java.util.UUID.class, long.class, long.class, int.class, option, option);
    need(missing, StateOperatorProgress.class, Map.class, "customMetrics");
    need(missing, TaskContext.class, Properties.class, "getLocalProperties");
    need(missing, ReusedExchangeExec.class, Exchange.class, "child");
    need(
        missing,
        MicroBatchExecution.class,
        void.class,
        JoinExec.END_OF_BATCH,
        MicroBatchExecutionContext.class);
    need(
        missing,
        StateStoreCoordinatorRef.class,
        void.class,
        "reportStateStoreCommit",
        StateStoreProviderId.class, long.class, String.class);
  }

  /** All that a node overrides is in its superclass. */
  private static void compare(List<String> missing, Class<?> node, Class<?> base) {
    if (Modifier.isFinal(base.getModifiers())) {
      missing.add("an open class " + base.getName());
    }
    for (Method method : node.getDeclaredMethods()) {
      if (Modifier.isPublic(method.getModifiers()) && !method.isSynthetic()) {
        need(missing, base, method.getReturnType(), method.getName(), method.getParameterTypes());
      }
    }
  }

  private static void need(List<String> missing, Class<?> type, Class<?>... parameters) {
    try {
      type.getConstructor(parameters);
    } catch (NoSuchMethodException e) {
      missing.add("the constructor " + e.getMessage());
    }
  }

  private static void need(List<String> missing, Class<?> type, Class<?> result, String name, Class<?>... parameters) {
    for (Class<?> c = type; c != null; c = c.getSuperclass()) {
      for (Method method : c.getDeclaredMethods()) {
        if (method.getName().equals(name)
            && method.getReturnType().equals(result)
            && List.of(method.getParameterTypes()).equals(List.of(parameters))
            && !Modifier.isFinal(method.getModifiers())) {
          return;
        }
      }
    }
    missing.add(result.getSimpleName() + " " + type.getName() + "." + name + List.of(parameters));
  }
}
