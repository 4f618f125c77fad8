package sparkmjoin;

import java.util.Set;
import java.util.TreeSet;

/** The Spark versions that the shim is compiled for and tested with. */
public final class SparkVersions {
  private static final Set<String> TESTED = new TreeSet<>(Set.of("4.2", "4.3"));

  private SparkVersions() {}

  /** Throws unless {@code version}, such as {@code 4.3.0}, is one of a minor version that was tested. */
  public static void require(String version) {
    String[] parts = version.split("[.\\-]");
    String minor = parts.length < 2 ? version : parts[0] + "." + parts[1];
    if (!TESTED.contains(minor)) {
      throw new UnsupportedOperationException(
          "the jar of spark_mjoin works with Spark "
              + String.join(" and ", TESTED)
              + ", and this is Spark "
              + version
              + ": use one of these, or take the jar away (spark.jars, ADD JAR, spark_mjoin.enable)"
              + " and set option 'stateLocation'");
    }
  }
}
