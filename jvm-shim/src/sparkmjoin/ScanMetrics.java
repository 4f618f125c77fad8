package sparkmjoin;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.util.MutableURLClassLoader;
import sparkmjoin.ui.SumMetric;

/** The counters of the scan node in the Spark UI. */
public final class ScanMetrics {
  /**
   * Names as in the query's progress, and what the UI calls them. Spark wants to know them before anything runs; a
   * task may report fewer. A test compares them with the names that the source reports.
   */
  private static final Map<String, String> DESCRIPTIONS = new TreeMap<>();

  static {
    for (String phase : new String[] {"memoryToMemory", "diskToMemory", "diskToDisk"}) {
      String words = phase.replaceAll("(?=[A-Z])", "-").toLowerCase();
      DESCRIPTIONS.put(phase + "Rows", words + ": rows");
      DESCRIPTIONS.put(phase + "TimeMs", words + ": time (ms)");
      DESCRIPTIONS.put(phase + "Probes", words + ": probes");
    }
    DESCRIPTIONS.put("hashes", "keys hashed");
    DESCRIPTIONS.put("moves", "rows put into the state");
    DESCRIPTIONS.put("comparisons", "candidates compared");
    DESCRIPTIONS.put("memoryUsedBytes", "state in memory (bytes)");
    DESCRIPTIONS.put("memoryPeakBytes", "state and disk work in memory, most (bytes)");
    DESCRIPTIONS.put("diskUsedBytes", "durable state (bytes)");
    DESCRIPTIONS.put("numRowsTotal", "rows in the state");
    DESCRIPTIONS.put("intermediateRowsTotal", "intermediate results in the state");
    DESCRIPTIONS.put("numRowsInMemory", "rows in memory");
    DESCRIPTIONS.put("numRowsOnDisk", "rows on disk only");
    DESCRIPTIONS.put("flushes", "flushes");
    DESCRIPTIONS.put("rowsFlushed", "rows flushed");
    DESCRIPTIONS.put("bytesFlushed", "bytes flushed");
    DESCRIPTIONS.put("rowsPurged", "rows purged");
    DESCRIPTIONS.put("rowsDropped", "rows never stored");
    DESCRIPTIONS.put("numInputPunctuations", "punctuations");
    DESCRIPTIONS.put("promisesBroken", "promises broken");
    DESCRIPTIONS.put("promisesForgotten", "key promises forgotten for lack of memory");
    DESCRIPTIONS.put("sampleBytes", "bytes of the sample for estimates");
    DESCRIPTIONS.put("rowsShed", "rows shed");
    DESCRIPTIONS.put("rowsShrunk", "rows inside windows dropped for lack of memory");
    DESCRIPTIONS.put("rowsWaited", "rows that others of their input overtook");
    DESCRIPTIONS.put("rowsLate", "rows that came too late");
    DESCRIPTIONS.put("deferredRows", "rows whose results are not complete");
    DESCRIPTIONS.put("resultsTotal", "results since the query began");
    DESCRIPTIONS.put("rowsTakenOver", "rows taken over from other numbers of partitions");
    DESCRIPTIONS.put("stateCacheHits", "partitions that found their state in the worker");
  }

  private ScanMetrics() {}

  /** One task's value of a metric. */
  record Value(String name, long value) implements CustomTaskMetric {}

  /** The names and what they are called, for the test. */
  public static Map<String, String> descriptions() {
    return DESCRIPTIONS;
  }

  /** All of them, for {@code Scan.supportedCustomMetrics}. */
  static CustomMetric[] all() {
    return DESCRIPTIONS.entrySet().stream()
        .map(entry -> new SumMetric(entry.getKey(), entry.getValue()))
        .toArray(CustomMetric[]::new);
  }

  /**
   * Lets the UI load {@link SumMetric}, which it does by name, in a thread that does not see jars that were added to a
   * running session. Only this class becomes visible to all: sessions may have different versions of the others.
   */
  static synchronized void makeVisible() {
    MutableURLClassLoader application = null; // the highest one is that of spark-submit, which all threads see
    for (ClassLoader l = ScanMetrics.class.getClassLoader(); l != null; l = l.getParent()) {
      if (l instanceof MutableURLClassLoader mutable) {
        application = mutable;
      }
    }
    String file = SumMetric.class.getName().replace('.', '/') + ".class";
    if (application == null || application.getResource(file) != null) {
      return;
    }
    try (InputStream contents = ScanMetrics.class.getClassLoader().getResourceAsStream(file)) {
      Path directory = Files.createTempDirectory("spark-mjoin-");
      Path copy = directory.resolve(file);
      Files.createDirectories(copy.getParent());
      Files.copy(contents, copy);
      for (Path p = copy; !p.equals(directory.getParent()); p = p.getParent()) {
        p.toFile().deleteOnExit();
      }
      application.addURL(directory.toUri().toURL());
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }
}
