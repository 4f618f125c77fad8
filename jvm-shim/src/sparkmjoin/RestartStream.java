package sparkmjoin;

import java.util.Arrays;
import java.util.OptionalLong;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * A stream without rows that asks for one batch when a query starts again.
 *
 * <p>Results may be pending on disk when a query ends. While it runs, the join asks for batches without data until they
 * are emitted: before each trigger Spark asks the operators of the last batch. After a restart there is no last batch,
 * and Spark would wait for new data. So this stream has something new then, once.
 *
 * <p>Where Spark runs a batch at the start anyway it has nothing: at the first start of a query, and where the last
 * batch was not finished.
 */
final class RestartStream implements MicroBatchStream, SupportsTriggerAvailableNow {
  private final boolean resumes;
  private boolean asked;

  /** metadata: the directory of this source in the checkpoint, as Spark gives it. */
  RestartStream(String metadata) {
    Path checkpoint = new Path(metadata).getParent().getParent();
    OptionalLong done = newest(new Path(checkpoint, "commits"));
    this.resumes = done.isPresent() && done.equals(newest(new Path(checkpoint, "offsets")));
  }

  /** The number of the last batch in one of Spark's logs. */
  private static OptionalLong newest(Path log) {
    Configuration conf = SparkSession.active().sessionState().newHadoopConf();
    CheckpointFileManager files = CheckpointFileManager.create(log, conf);
    try {
      return files.exists(log)
          ? Arrays.stream(files.list(log, file -> file.getName().matches("\\d+")))
              .mapToLong(file -> Long.parseLong(file.getPath().getName()))
              .max()
          : OptionalLong.empty();
    } finally {
      files.close();
    }
  }

  @Override
  public Offset initialOffset() {
    return new Restarts(0);
  }

  /** Null, which is Spark's word for nothing new, unless the query has just started again. */
  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    long before = ((Restarts) start).number();
    if (resumes && !asked) {
      asked = true;
      return new Restarts(before + 1);
    }
    return before == 0 ? null : start;
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("Spark asks with a start");
  }

  @Override
  public void prepareForTriggerAvailableNow() {}

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    return new InputPartition[0];
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return partition -> {
      throw new UnsupportedOperationException("there is nothing to read");
    };
  }

  @Override
  public Offset deserializeOffset(String json) {
    return new Restarts(Long.parseLong(json));
  }

  @Override
  public void commit(Offset end) {}

  @Override
  public void stop() {}

  @Override
  public String toString() {
    return "mjoin: one batch after a restart, for results that are pending";
  }

  /** How often the query has started again. */
  private static final class Restarts extends Offset {
    private final long number;

    Restarts(long number) {
      this.number = number;
    }

    long number() {
      return number;
    }

    @Override
    public String json() {
      return Long.toString(number);
    }
  }
}
