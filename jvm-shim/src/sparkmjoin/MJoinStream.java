package sparkmjoin;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStreamWithTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.util.CollectionAccumulator;

/**
 * The stream of one query on the driver: the Python source's, with metrics and with partitions that stay in place.
 *
 * <p>Metrics are those of the state that the batch has committed. Spark asks for them when the batch is done; the
 * planner, the Python process behind this stream, then reads the manifests of the version that the batch made. So a
 * task that ran twice is counted once. The planner answers with {@code reportLatestOffset}, which has no other use
 * here.
 */
final class MJoinStream extends PythonMicroBatchStreamWithTriggerAvailableNow implements ReportsSourceMetrics {
  private static final ObjectMapper JSON = new ObjectMapper();

  private final PythonDataSourceV2 source;
  private final String name;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;
  private final PythonStreamingSourceRunner planner;
  private final CollectionAccumulator<byte[]> reports = new CollectionAccumulator<>();
  private final Optional<Workers> workers;
  private Offset latest;
  private boolean stopped;

  MJoinStream(
      PythonDataSourceV2 source,
      String name,
      StructType schema,
      CaseInsensitiveStringMap options,
      PythonStreamingSourceRunner planner) {
    super(source, name, schema, options, planner);
    this.source = source;
    this.name = name;
    this.schema = schema;
    this.options = options;
    this.planner = planner;
    SparkSession.active().sparkContext().register(reports);
    this.workers = options.getBoolean("stickyPartitions", true) ? Optional.of(new Workers()) : Optional.empty();
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    latest = super.latestOffset(start, limit);
    return latest;
  }

  @Override
  public Offset reportLatestOffset() {
    return latest;
  }

  @Override
  public Map<String, String> metrics(Optional<Offset> latestConsumedOffset) {
    String reported = planner.reportLatestOffset();
    Map<String, String> metrics = new TreeMap<>();
    try {
      JsonNode named = JSON.readTree(reported).path("metrics");
      named.fieldNames().forEachRemaining(metric -> metrics.put(metric, named.get(metric).asText()));
    } catch (JsonProcessingException e) {
      throw new IllegalStateException("the planner of source '" + name + "' reported " + reported, e);
    }
    return metrics;
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    reports.reset(); // of the batch before
    InputPartition[] partitions = super.planInputPartitions(start, end);
    if (workers.isPresent()) {
      Map<Integer, String> places = workers.get().places(partitions.length);
      for (int i = 0; i < partitions.length; i++) {
        partitions[i] = new Placed((PythonStreamingInputPartition) partitions[i], places.get(i));
      }
    }
    return partitions;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    byte[] read = source.getOrCreateReadInfo(name, options, schema, true).func();
    return new MJoinReaderFactory(
        source.source().dataSourceCls(),
        read,
        schema,
        reports,
        workers.map(Workers::pool).orElse(null),
        isColumnar(options));
  }

  /** Whether readers pass on Arrow batches; the option is only for comparisons. */
  static boolean isColumnar(CaseInsensitiveStringMap options) {
    return options.getBoolean("__columnar", true);
  }

  /** Nothing to do, and so nothing to ask the planner: tasks remove what is old when they publish what is new. */
  @Override
  public void commit(Offset end) {}

  @Override
  public void stop() {
    if (!stopped) { // the planner may have another query by the second time
      stopped = true;
      workers.ifPresent(Workers::release);
      super.stop();
    }
  }

  /** An input partition that prefers the place where it was read before. */
  private static final class Placed extends PythonStreamingInputPartition {
    private final String place;

    Placed(PythonStreamingInputPartition partition, String place) {
      super(partition.index(), partition.pickedPartition(), partition.blockId());
      this.place = place;
    }

    @Override
    public String[] preferredLocations() {
      return place == null ? new String[0] : new String[] {place};
    }
  }
}
