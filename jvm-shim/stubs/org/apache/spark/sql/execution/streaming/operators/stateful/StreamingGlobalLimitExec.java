package org.apache.spark.sql.execution.streaming.operators.stateful;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.streaming.state.OperatorStateMetadata;
import org.apache.spark.sql.execution.streaming.state.StateSchemaValidationResult;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StateOperatorProgress;
import scala.Option;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.List;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

/**
 * What javac sees in place of Spark's class, and what is not packed into the jar. Scala's compiler gives that class
 * methods with two types of result ({@code child} returns a {@code SparkPlan} and a {@code TreeNode}), and javac
 * refuses to extend it.
 *
 * <p>It has the members that {@code sparkmjoin.JoinExec} calls or overrides, as they are in the class file. {@code
 * sparkmjoin.NodeCheck} compares them with the real class when a session starts.
 */
public abstract class StreamingGlobalLimitExec extends SparkPlan {
  public StreamingGlobalLimitExec(
      long limit, SparkPlan child, Option<StatefulOperatorStateInfo> stateInfo, Option<OutputMode> outputMode) {}

  public native long streamLimit();

  public native SparkPlan child();

  public native Option<StatefulOperatorStateInfo> stateInfo();

  public native StatefulOperatorStateInfo getStateInfo();

  public native Option<OutputMode> outputMode();

  public native Map<String, SQLMetric> pythonMetrics();

  public native StreamingGlobalLimitExec copy(
      long limit, SparkPlan child, Option<StatefulOperatorStateInfo> stateInfo, Option<OutputMode> outputMode);

  public native StreamingGlobalLimitExec withNewChildInternal(SparkPlan child);

  public native String shortName();

  public native List<StateSchemaValidationResult> validateAndMaybeEvolveStateSchema(
      Configuration conf, long batchId, int version);

  public native List<List<String>> stateSchemaList(
      List<StateSchemaValidationResult> results, Option<OperatorStateMetadata> old);

  public native StatefulOpStateStoreCheckpointInfo[] getStateStoreCheckpointInfo();

  public native Option<Object> produceOutputWatermark(long watermark);

  public native boolean shouldRunAnotherBatch(long watermark);

  public native Seq<StatefulOperatorCustomMetric> customStatefulOperatorMetrics();

  public native StateOperatorProgress getProgress();

  // Abstract in SparkPlan, implemented by the real class.

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
