package sparkmjoin;

import java.net.URI;
import org.apache.hadoop.fs.Path;

/** Names of places in a file system, as Python understands them. */
final class Locations {
  private Locations() {}

  /** A path of the local file system as it is, anything else as a URI; Hadoop's own spelling is neither. */
  static String forPython(String location) {
    URI uri = new Path(location).toUri();
    return uri.getScheme() == null || uri.getScheme().equals("file") ? uri.getPath() : uri.toString();
  }
}
