package sparkmjoin;

import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/**
 * What {@code spark_mjoin.enable} names in {@code spark.sql.streaming.checkpointFileManagerClass}: {@link
 * LocalCheckpoints} for a checkpoint on the local file system, and for every other what Spark itself would take.
 */
public final class CheckpointFiles implements CheckpointFileManager {
  private static final String SETTING = "spark.sql.streaming.checkpointFileManagerClass";

  private final CheckpointFileManager files;

  /** Spark makes one for each directory of a checkpoint. */
  public CheckpointFiles(Path path, Configuration conf) {
    URI place = path.toUri().getScheme() == null ? FileSystem.getDefaultUri(conf) : path.toUri();
    if ("file".equals(place.getScheme())) {
      files = new LocalCheckpoints(path, conf);
    } else {
      Configuration own = new Configuration(conf);
      own.unset(SETTING);
      files = CheckpointFileManager.create(path, own);
    }
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    return files.createAtomic(path, overwriteIfPossible);
  }

  @Override
  public FSDataInputStream open(Path path) {
    return files.open(path);
  }

  @Override
  public FileStatus[] list(Path path, PathFilter filter) {
    return files.list(path, filter);
  }

  @Override
  public void mkdirs(Path path) {
    files.mkdirs(path);
  }

  @Override
  public boolean exists(Path path) {
    return files.exists(path);
  }

  @Override
  public void delete(Path path) {
    files.delete(path);
  }

  @Override
  public boolean isLocal() {
    return files.isLocal();
  }

  @Override
  public Path createCheckpointDirectory() {
    return files.createCheckpointDirectory();
  }

  @Override
  public void close() {
    files.close();
  }
}
