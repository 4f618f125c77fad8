package sparkmjoin;

import java.util.Arrays;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Scala's sequences, for Spark's interfaces. */
final class Seqs {
  private Seqs() {}

  @SafeVarargs
  @SuppressWarnings("varargs") // the array is only read
  static <T> Seq<T> of(T... all) {
    return CollectionConverters.asScala(Arrays.asList(all)).toList();
  }

  /** The same sequence, of a wider type: Scala's sequences are covariant, and Java cannot know. */
  @SuppressWarnings("unchecked")
  static <T> Seq<T> widened(Seq<? extends T> all) {
    return (Seq<T>) all;
  }
}
