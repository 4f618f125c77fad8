package sparkmjoin;

import java.io.Serializable;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import scala.jdk.javaapi.CollectionConverters;

/**
 * How the rows of a batch are divided among the partitions of a join, as its plan says. The join tells all that send
 * rows to it before they are executed: {@link SendExec}, and {@link JoinExec} where it is an earlier stage.
 *
 * <p>Their workers find it in a local property of the task. Tasks on one executor may share these, of several stages
 * too, so the property has the token of the join in its name.
 */
record Routing(String token, String text) implements Serializable {
  private static final String PROPERTY = "mjoin.routing."; // doors/worker.py looks for it

  /** Tells those that send the rows of {@code plan}. */
  void tell(SparkPlan plan) {
    if (plan instanceof SendExec send) {
      send.sendBy(this);
    } else if (plan instanceof JoinExec stage) {
      stage.sendBy(this);
    } else if (plan instanceof ReusedExchangeExec reused) { // to Spark it is a leaf
      tell(reused.child());
    } else {
      CollectionConverters.asJava(plan.children()).forEach(this::tell);
    }
  }

  /** What a node goes by that has heard {@code before}, or null. One exchange cannot divide its rows in two ways. */
  Routing after(Routing before) {
    if (before != null && !before.equals(this)) {
      throw new IllegalStateException(
          "two joins of this query have the rows of one exchange, which is to divide them as "
              + before.text()
              + " and as "
              + text
              + ": set spark.sql.exchange.reuse to false");
    }
    return this;
  }

  /** Lets the worker of the current task know it; called before the worker starts. */
  void pass() {
    TaskContext.get().getLocalProperties().setProperty(PROPERTY + token, text);
  }
}
