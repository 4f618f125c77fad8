package sparkmjoin;

import java.io.Serializable;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.rdd.RDD;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection$;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.MapInArrowExec;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction1;

/**
 * The {@code mapInArrow} in which rows of an input become parcels, as Spark has it, with a worker that costs less: see
 * {@link ArrowWorker}.
 */
public final class SendExec extends MapInArrowExec {
  private transient Routing routing; // null before the execution

  /** For Spark too, which copies nodes by their constructors. */
  public SendExec(
      Expression func, Seq<Attribute> output, SparkPlan child, boolean isBarrier, Option<ResourceProfile> profile) {
    super(func, output, child, isBarrier, profile);
  }

  @Override
  public MapInArrowExec copy(
      Expression func, Seq<Attribute> output, SparkPlan child, boolean isBarrier, Option<ResourceProfile> profile) {
    return new SendExec(func, output, child, isBarrier, profile);
  }

  @Override
  public MapInArrowExec withNewChildInternal(SparkPlan child) {
    return new SendExec(func(), output(), child, isBarrier(), profile());
  }

  @Override
  public String nodeName() {
    return "MJoinSend";
  }

  /** How the rows are divided. The join says it before this node is executed. */
  void sendBy(Routing divided) {
    routing = divided.after(routing);
  }

  @Override
  public RDD<InternalRow> doExecute() {
    PythonUDF udf = (PythonUDF) func();
    Sending sending =
        new Sending(
            udf.func(),
            udf.resultId().id(),
            child().schema(),
            (StructType) udf.dataType(),
            ArrowWorker.Settings.of(conf(), udf.func(), session()),
            routing,
            pythonMetrics());
    return child().execute().mapPartitions(sending, false, ClassTag$.MODULE$.apply(InternalRow.class));
  }

  /** What a task does. */
  private static final class Sending extends AbstractFunction1<Iterator<InternalRow>, Iterator<InternalRow>>
      implements Serializable {
    private final PythonFunction function;
    private final long resultId;
    private final StructType input;
    private final StructType output;
    private final ArrowWorker.Settings settings;
    private final Routing routing;
    private final Map<String, SQLMetric> sizes;

    Sending(
        PythonFunction function,
        long resultId,
        StructType input,
        StructType output,
        ArrowWorker.Settings settings,
        Routing routing,
        Map<String, SQLMetric> sizes) {
      this.function = function;
      this.resultId = resultId;
      this.input = input;
      this.output = output;
      this.settings = settings;
      this.routing = routing;
      this.sizes = sizes;
    }

    @Override
    public Iterator<InternalRow> apply(Iterator<InternalRow> rows) {
      if (routing != null) { // a worker that needs it misses it
        routing.pass();
      }
      return new Parcels(
          ArrowWorker.run(function, resultId, rows, input, output, settings, sizes),
          UnsafeProjection$.MODULE$.create(output));
    }
  }

  /** The rows of what a worker returns; there are few, and they are large. */
  private static final class Parcels extends AbstractIterator<InternalRow> {
    private final Iterator<ColumnarBatch> batches;
    private final UnsafeProjection projection;
    private java.util.Iterator<InternalRow> rows = java.util.Collections.emptyIterator();

    Parcels(Iterator<ColumnarBatch> batches, UnsafeProjection projection) {
      this.batches = batches;
      this.projection = projection;
    }

    @Override
    public boolean hasNext() {
      while (!rows.hasNext() && batches.hasNext()) {
        rows = batches.next().rowIterator();
      }
      return rows.hasNext();
    }

    @Override
    public InternalRow next() {
      return projection.apply(rows.next());
    }
  }
}
