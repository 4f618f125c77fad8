package sparkmjoin;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;
import java.util.TreeMap;
import org.apache.spark.SparkEnv;
import org.apache.spark.storage.BlockManager;
import org.apache.spark.storage.BlockManagerId;
import scala.jdk.javaapi.CollectionConverters;

/**
 * On which executor and in which Python worker the partitions of one query run, batch after batch.
 *
 * <p>Executors: a partition stays on its executor as long as that lives, and the numbers of partitions of two executors
 * differ by at most one. When an executor starts or stops, only as many partitions move as that takes.
 *
 * <p>Python workers: Spark keeps one pool of them per set of environment variables, so each partition has a variable of
 * its own, made of its number and the number of the query. Spark never ends a pool, so a query takes the smallest
 * number that no running query of this driver has: there are as many pools as partitions ever ran at once.
 */
public final class Workers {
  private static final BitSet TAKEN = new BitSet();

  private final int query;
  private final Map<Integer, String> places = new TreeMap<>();

  Workers() {
    synchronized (TAKEN) {
      query = TAKEN.nextClearBit(0);
      TAKEN.set(query);
    }
  }

  /** Let another query have the number of this one. */
  void release() {
    synchronized (TAKEN) {
      TAKEN.clear(query);
    }
  }

  /** What the names of this query's worker pools begin with. */
  String pool() {
    return Integer.toString(query);
  }

  /** Partition to place, in Spark's spelling of a location; empty where the driver is the only executor. */
  Map<Integer, String> places(int partitions) {
    assign(places, partitions, List.copyOf(executors().keySet()));
    return places;
  }

  /** Brings {@code places} up to date with the executors that there are now. */
  public static void assign(Map<Integer, String> places, int partitions, List<String> executors) {
    places.values().retainAll(executors);
    places.keySet().removeIf(partition -> partition >= partitions);
    if (executors.isEmpty()) {
      return;
    }
    Map<String, List<Integer>> load = new HashMap<>();
    executors.forEach(executor -> load.put(executor, new ArrayList<>()));
    places.forEach((partition, executor) -> load.get(executor).add(partition));
    Comparator<String> byLoad = Comparator.comparing((String executor) -> load.get(executor).size());
    Comparator<String> order = byLoad.thenComparing(Comparator.naturalOrder());
    for (int partition = 0; partition < partitions; partition++) {
      if (!places.containsKey(partition)) {
        String idlest = Collections.min(executors, order);
        places.put(partition, idlest);
        load.get(idlest).add(partition);
      }
    }
    while (true) {
      String idlest = Collections.min(executors, order);
      String busiest = Collections.max(executors, order);
      if (load.get(busiest).size() - load.get(idlest).size() < 2) {
        return;
      }
      Integer moved = load.get(busiest).remove(load.get(busiest).size() - 1);
      load.get(idlest).add(moved);
      places.put(moved, idlest);
    }
  }

  /** The executors that there are now, in Spark's spelling of locations, with their hosts; without the driver. */
  static SortedMap<String, String> executors() {
    BlockManager driver = SparkEnv.get().blockManager();
    SortedMap<String, String> found = new TreeMap<>();
    for (BlockManagerId peer : CollectionConverters.asJava(driver.master().getPeers(driver.blockManagerId()))) {
      found.put("executor_" + peer.host() + "_" + peer.executorId(), peer.host());
    }
    return found;
  }
}
