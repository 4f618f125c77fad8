package sparkmjoin;

import java.util.HashMap;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/** The Python source {@code mjoin}, as Spark wraps it, except that its streams are {@link MJoinStream}s. */
final class MJoinSource extends PythonDataSourceV2 {
  private static final String NAME = "mjoin";

  /** The option by which the Python source learns that the shim is there, and where its state belongs. */
  private static final String CHECKPOINT = "__checkpointLocation";

  private MJoinSource() {
    setShortName(NAME);
  }

  static TableProvider create() {
    ScanMetrics.makeVisible();
    return new MJoinSource();
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    MJoinSource source = this;
    return new PythonTable(source, NAME, schema) {
      @Override
      public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return () -> new MJoinScan(source, schema, options);
      }
    };
  }

  private static final class MJoinScan extends PythonScan {
    private final StructType schema;
    private final CaseInsensitiveStringMap options;
    private boolean streaming;

    MJoinScan(MJoinSource source, StructType schema, CaseInsensitiveStringMap options) {
      super(source, NAME, schema, options, new Filter[0]);
      this.schema = schema;
      this.options = options;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
      streaming = true;
      Map<String, String> given = new HashMap<>(options.asCaseSensitiveMap());
      given.put(CHECKPOINT, Locations.forPython(checkpointLocation));
      CaseInsensitiveStringMap all = new CaseInsensitiveStringMap(given);
      // Not the source that the DataFrame was loaded with: that one has been pickled without the location.
      MJoinSource fresh = new MJoinSource();
      byte[] pickled = fresh.getOrCreateDataSourceInPython(NAME, all, Option.apply(schema)).dataSource();
      Planner planner = Planner.of(fresh.source().dataSourceCls(), pickled, schema);
      return new MJoinStream(fresh, NAME, schema, all, planner);
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
      return streaming && MJoinStream.isColumnar(options)
          ? ColumnarSupportMode.SUPPORTED
          : ColumnarSupportMode.UNSUPPORTED;
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
      CustomMetric[] python = super.supportedCustomMetrics();
      return streaming
          ? Stream.of(python, ScanMetrics.all()).flatMap(Stream::of).toArray(CustomMetric[]::new)
          : python;
    }
  }
}
