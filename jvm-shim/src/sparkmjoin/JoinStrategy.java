package sparkmjoin;

import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Plans a streaming {@code mapInArrow} as {@link JoinExec} if its Python function is named {@code
 * mjoin_join_<partitions>_<token>}, with its stage behind that where there are several, and its input is parcels; as
 * {@link SendExec} if it is named {@code mjoin_send} and its output is. The token is another one for each join that is
 * made. So the operator, which a checkpoint knows by its name, is named after the stage alone.
 *
 * <p>Python has no other way to say to the planner which function is meant. A query that is not streaming keeps its
 * {@code mapInArrow}.
 */
final class JoinStrategy extends SparkStrategy {
  private static final String SEND = "mjoin_send";
  private static final Pattern MARK = Pattern.compile("mjoin_join_([1-9]\\d{0,8})_([0-9a-f]+)( .+)?", Pattern.DOTALL);

  /** In the active session, once. Streaming queries take over the strategies that their session has at their start. */
  static void install() {
    NodeCheck.require();
    SparkSession session = SparkSession.active();
    synchronized (JoinStrategy.class) {
      Seq<SparkStrategy> known = session.experimental().extraStrategies();
      if (!known.exists(other -> other.getClass().getName().equals(JoinStrategy.class.getName()))) {
        List<SparkStrategy> all = new ArrayList<>(CollectionConverters.asJava(known));
        all.add(new JoinStrategy());
        session.experimental().extraStrategies_$eq(CollectionConverters.asScala(all).toList());
      }
    }
  }

  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    if (plan instanceof MapInArrow map
        && map.isStreaming()
        && map.expressions().head() instanceof PythonUDF udf) {
      if (udf.name().equals(SEND) && NodeProvider.PARCELS.sameType(map.schema())) {
        return Seqs.of(new SendExec(udf, map.output(), planLater(map.child()), false, Option.empty()));
      }
      Matcher mark = MARK.matcher(udf.name());
      if (mark.matches() && NodeProvider.PARCELS.sameType(map.child().schema())) {
        String name = mark.group(3) == null ? "mjoin" : "mjoin" + mark.group(3);
        int partitions = Integer.parseInt(mark.group(1));
        JoinFunction function = new JoinFunction(name, partitions, mark.group(2), udf, map.output());
        return Seqs.of(new JoinExec(0L, planLater(map.child()), Option.empty(), Option.empty(), function));
      }
    }
    return Seqs.of();
  }
}
