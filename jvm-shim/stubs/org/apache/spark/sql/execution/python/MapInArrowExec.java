package org.apache.spark.sql.execution.python;

import org.apache.spark.rdd.RDD;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import scala.Option;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

/**
 * What javac sees in place of Spark's class, and what is not packed into the jar: javac cannot extend that class, as it
 * cannot extend {@code StreamingGlobalLimitExec}.
 *
 * <p>It has the members that {@code sparkmjoin.SendExec} calls or overrides, as they are in the class file. {@code
 * sparkmjoin.NodeCheck} compares them with the real class when a session starts.
 */
public abstract class MapInArrowExec extends SparkPlan {
  public MapInArrowExec(
      Expression func,
      Seq<Attribute> output,
      SparkPlan child,
      boolean isBarrier,
      Option<ResourceProfile> profile) {}

  public native Expression func();

  public native SparkPlan child();

  public native boolean isBarrier();

  public native Option<ResourceProfile> profile();

  public native Map<String, SQLMetric> pythonMetrics();

  public native MapInArrowExec copy(
      Expression func,
      Seq<Attribute> output,
      SparkPlan child,
      boolean isBarrier,
      Option<ResourceProfile> profile);

  public native MapInArrowExec withNewChildInternal(SparkPlan child);

  // Abstract in SparkPlan, implemented by the real class.

  @Override
  public native RDD<InternalRow> doExecute();

  @Override
  public native Seq<Attribute> output();

  @Override
  public native Seq<SparkPlan> children();

  @Override
  public native SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children);

  @Override
  public native Object productElement(int i);

  @Override
  public native int productArity();

  @Override
  public native boolean canEqual(Object other);
}
