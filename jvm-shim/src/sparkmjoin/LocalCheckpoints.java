package sparkmjoin;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.nio.channels.FileChannel;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFileAttributeView;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Shell;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Checkpoint files on a local disk, without a process for each.
 *
 * <p>Where Hadoop's native library is missing, as in {@code pip install pyspark}, Spark's own manager forks
 * {@code chmod} and {@code readlink} for every file that it writes. This one asks Java instead. Names, contents,
 * permissions and checksum files are the same, so either may resume from the other's files.
 *
 * <p>A file is written under a temporary name, forced to the disk, and then linked to its own name: that is atomic, and
 * an existing file is only replaced where that is allowed. Spark's own manager looks first, then renames, and forces
 * nothing. The checksum of an older file of the same name is removed before the new file appears, and the new checksum
 * is written last. So no file ever has the checksum of another, even after a crash. Not covered: file systems without
 * hard links, where a file that appears between the look and the rename is replaced, as by Spark's own manager.
 */
final class LocalCheckpoints extends FileSystemBasedCheckpointFileManager {
  private final LocalFileSystem files;

  LocalCheckpoints(org.apache.hadoop.fs.Path path, Configuration conf) {
    super(path, conf);
    files = new LocalFileSystem(new WithoutForks());
    try {
      files.initialize(URI.create("file:///"), conf);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** What every other method of the superclass works with. */
  @Override
  public FileSystem fs() {
    return files;
  }

  @Override
  public void renameTempFile(
      org.apache.hadoop.fs.Path source, org.apache.hadoop.fs.Path target, boolean overwriteIfPossible) {
    try {
      publish(local(source), local(target), overwriteIfPossible);
    } catch (FileAlreadyExistsException e) {
      delete(source);
      throw LocalCheckpoints.<RuntimeException>undeclared(e);
    } catch (IOException e) {
      throw LocalCheckpoints.<RuntimeException>undeclared(e);
    }
  }

  private void publish(Path source, Path target, boolean overwrite) throws IOException {
    if (!overwrite && Files.exists(target)) {
      throw exists(target);
    }
    force(source, StandardOpenOption.WRITE);
    Files.deleteIfExists(checksumOf(target));
    if (overwrite) {
      Files.move(source, target, StandardCopyOption.ATOMIC_MOVE);
    } else {
      try {
        Files.createLink(target, source);
        Files.delete(source);
      } catch (java.nio.file.FileAlreadyExistsException e) {
        throw exists(target);
      } catch (UnsupportedOperationException | FileSystemException e) {
        Files.move(source, target, StandardCopyOption.ATOMIC_MOVE);
      }
    }
    if (Files.exists(checksumOf(source))) {
      Files.move(checksumOf(source), checksumOf(target), StandardCopyOption.ATOMIC_MOVE);
    }
    if (!Shell.WINDOWS) { // where a directory cannot be opened
      force(target.getParent(), StandardOpenOption.READ);
    }
  }

  private Path local(org.apache.hadoop.fs.Path path) {
    return files.pathToFile(path).toPath();
  }

  private Path checksumOf(Path file) {
    org.apache.hadoop.fs.Path named = new org.apache.hadoop.fs.Path(file.toUri());
    return local(files.getChecksumFile(named));
  }

  private static FileAlreadyExistsException exists(Path target) {
    return new FileAlreadyExistsException(target + " is there already");
  }

  private static void force(Path path, StandardOpenOption mode) throws IOException {
    try (FileChannel channel = FileChannel.open(path, mode)) {
      channel.force(true);
    }
  }

  /** An exception that callers expect, though Scala's interface does not declare it. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> E undeclared(Throwable e) throws E {
    throw (E) e;
  }

  /** Hadoop's local file system, with permissions set by Java. */
  private static final class WithoutForks extends RawLocalFileSystem {
    @Override
    public void setPermission(org.apache.hadoop.fs.Path path, FsPermission permission) throws IOException {
      PosixFileAttributeView view =
          Files.getFileAttributeView(pathToFile(path).toPath(), PosixFileAttributeView.class);
      if (view == null || permission.getStickyBit()) { // Java has no name for the sticky bit
        super.setPermission(path, permission);
      } else {
        view.setPermissions(PosixFilePermissions.fromString(permission.toString()));
      }
    }
  }
}
