package sparkmjoin;

import java.util.Map;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What Spark finds under the name {@code mjoin}: a Java source wins over a Python one of the same name.
 *
 * <p>Spark makes an instance whenever it looks up any format, so it does nothing and touches no internal class
 * before the source itself is used. By then the version of Spark was checked.
 */
public final class MJoinProvider implements TableProvider, DataSourceRegister {
  private TableProvider source;

  @Override
  public String shortName() {
    return "mjoin";
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return source().inferSchema(options);
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return source().getTable(schema, partitioning, properties);
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  private TableProvider source() {
    if (source == null) {
      SparkVersions.require(SparkSession.active().version());
      source = MJoinSource.create();
    }
    return source;
  }
}
