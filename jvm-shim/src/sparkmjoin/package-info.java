/**
 * What Python cannot do by itself in Spark. There is no join logic here.
 *
 * <p>For {@code format("mjoin")}: metrics in the query's progress and in the Spark UI, state under the query's own
 * checkpoint, and partitions that stay where their state is. Spark calls {@link sparkmjoin.MJoinProvider}, which uses
 * the Python source of the same name, with a stream ({@link sparkmjoin.MJoinStream}) of its own in between.
 *
 * <p>For {@code spark_mjoin.join}: a join of any streams is a stateful operator of the query. {@link
 * sparkmjoin.NodeProvider} gives a session the strategy that plans it ({@link sparkmjoin.JoinStrategy}), {@link
 * sparkmjoin.JoinExec} is the operator, {@link sparkmjoin.SendExec} sends it the rows of its inputs as {@link
 * sparkmjoin.Routing} says, {@link sparkmjoin.RunningJoin} is what lasts on the driver from batch to batch, {@link
 * sparkmjoin.JoinRDD} has the tasks, and {@link sparkmjoin.RestartStream} asks for a batch after a restart.
 *
 * <p>Both have a Python process beside the driver that plans ({@link sparkmjoin.Planner}), and workers of their own for
 * their partitions ({@link sparkmjoin.Workers}, {@link sparkmjoin.ArrowWorker}).
 *
 * <p>{@code MJoinProvider}, {@code NodeProvider} and {@link sparkmjoin.SparkVersions} use public interfaces only, so
 * that they load in any Spark; all other classes use internal ones, which are checked by compiling and testing against
 * each minor version that is claimed.
 */
package sparkmjoin;
