/**
 * What a Python data source cannot do by itself: metrics in the query's progress and in the Spark UI, state under the
 * query's own checkpoint, and partitions that stay where their state is.
 *
 * <p>There is no join logic here. Spark calls {@link sparkmjoin.MJoinProvider} for {@code format("mjoin")}, which
 * uses the Python source of the same name, with a stream ({@link sparkmjoin.MJoinStream}) of its own in between.
 * {@code MJoinProvider} and {@link sparkmjoin.SparkVersions} use public interfaces only, so that they load in any
 * Spark; all other classes extend internal ones, which are checked by compiling and testing against each minor version
 * that is claimed.
 */
package sparkmjoin;
