package sparkmjoin;

import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What Spark finds under the name {@code mjoin-node}: {@code spark.read.format("mjoin-node").load().schema} lets the
 * session plan {@link JoinExec} from then on. Read as a stream, it is a {@link RestartStream}. There are no rows.
 *
 * <p>A data source is the one way to run code of a jar in a session that classic Spark and Spark Connect have in
 * common. As {@link MJoinProvider}, it touches no internal class before the version of Spark was checked.
 */
public final class NodeProvider implements TableProvider, DataSourceRegister {
  /** A row is for one partition. It is a part of one input, as the join's Python code has packed it. */
  static final StructType PARCELS =
      new StructType()
          .add("target", DataTypes.IntegerType)
          .add("input", DataTypes.ByteType)
          .add("rows", DataTypes.BinaryType);

  private static final String NAME = "mjoin-node";

  @Override
  public String shortName() {
    return NAME;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    SparkVersions.require(SparkSession.active().version());
    JoinStrategy.install();
    return PARCELS;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new Nothing();
  }

  /** A table that Spark can analyze, and read as a stream without rows. */
  private static final class Nothing implements SupportsRead {
    @Override
    public String name() {
      return NAME;
    }

    @Override
    public Column[] columns() {
      return Arrays.stream(PARCELS.fields())
          .map(field -> Column.create(field.name(), field.dataType()))
          .toArray(Column[]::new);
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return Stream::new;
    }
  }

  /** The table as a stream. */
  private static final class Stream implements Scan {
    @Override
    public StructType readSchema() {
      return PARCELS;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
      return new RestartStream(checkpointLocation);
    }
  }
}
