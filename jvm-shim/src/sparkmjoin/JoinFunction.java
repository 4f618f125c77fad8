package sparkmjoin;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import scala.collection.immutable.Seq;

/**
 * The Python function of a join, its name among operators, its number of partitions, the token by which those that send
 * rows to it know it, its columns. A node above may send it to tasks.
 */
record JoinFunction(String name, int partitions, String token, PythonUDF udf, Seq<Attribute> output)
    implements Serializable {}
