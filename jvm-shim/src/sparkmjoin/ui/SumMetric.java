package sparkmjoin.ui;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/**
 * A counter of the scan node in the Spark UI: the sum over the partitions.
 *
 * <p>Alone in its package, with nothing that may change, because it is loaded apart from the other classes (see {@code
 * sparkmjoin.ScanMetrics}).
 */
public final class SumMetric extends CustomSumMetric {
  private final String name;
  private final String description;

  /** For Spark's UI, which adds up values with an instance of its own. */
  public SumMetric() {
    this(null, null);
  }

  public SumMetric(String name, String description) {
    this.name = name;
    this.description = description;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String description() {
    return description;
  }
}
