package sparkmjoin;

import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column of an Arrow batch that is read where it lies in memory: numbers, dates, timestamps and strings.
 *
 * <p>Spark's own {@code ArrowColumnVector} has a class of its own for each type and checks bounds on every access, and
 * Spark asks twice for every value of every row that it makes. One class for all flat types lets the compiler put the
 * access into Spark's loop. Columns of other types stay what they are. A column is valid as long as the vector's
 * buffers are: until the reader takes the next batch.
 */
final class FlatColumn extends ColumnVector {
  private final int nulls;
  private final long validity; // address of a bitmap, one bit per row; 0 where no row is null
  private final long values; // address of the values, or of the bytes of the strings
  private final long offsets; // address of where strings begin

  /** The same column, read directly where that is possible. */
  static ColumnVector of(ColumnVector column) {
    ValueVector vector = ((ArrowColumnVector) column).getValueVector();
    DataType type = column.dataType();
    boolean flat = type instanceof StringType ? vector instanceof VarCharVector : isNumber(type, vector);
    return flat ? new FlatColumn(type, (FieldVector) vector) : column;
  }

  private static boolean isNumber(DataType type, ValueVector vector) {
    return vector instanceof BaseFixedWidthVector
        && (type instanceof LongType
            || type instanceof IntegerType
            || type instanceof ShortType
            || type instanceof ByteType
            || type instanceof DoubleType
            || type instanceof FloatType
            || type instanceof DateType
            || type instanceof TimestampType
            || type instanceof TimestampNTZType);
  }

  private FlatColumn(DataType type, FieldVector vector) {
    super(type);
    nulls = vector.getNullCount();
    validity = nulls == 0 ? 0 : vector.getValidityBufferAddress();
    values = vector.getDataBufferAddress();
    offsets = vector instanceof VarCharVector ? vector.getOffsetBufferAddress() : 0;
  }

  @Override
  public boolean hasNull() {
    return nulls > 0;
  }

  @Override
  public int numNulls() {
    return nulls;
  }

  @Override
  public boolean isNullAt(int row) {
    return validity != 0 && (Platform.getByte(null, validity + (row >> 3)) >> (row & 7) & 1) == 0;
  }

  @Override
  public byte getByte(int row) {
    return Platform.getByte(null, values + row);
  }

  @Override
  public short getShort(int row) {
    return Platform.getShort(null, values + 2L * row);
  }

  @Override
  public int getInt(int row) {
    return Platform.getInt(null, values + 4L * row);
  }

  @Override
  public long getLong(int row) {
    return Platform.getLong(null, values + 8L * row);
  }

  @Override
  public float getFloat(int row) {
    return Platform.getFloat(null, values + 4L * row);
  }

  @Override
  public double getDouble(int row) {
    return Platform.getDouble(null, values + 8L * row);
  }

  @Override
  public UTF8String getUTF8String(int row) {
    if (isNullAt(row)) {
      return null;
    }
    int start = Platform.getInt(null, offsets + 4L * row);
    int end = Platform.getInt(null, offsets + 4L * row + 4);
    return UTF8String.fromAddress(null, values + start, end - start);
  }

  @Override
  public void close() {} // the buffers are the runner's

  @Override
  public boolean getBoolean(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    throw new UnsupportedOperationException();
  }

  @Override
  public byte[] getBinary(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public ColumnarArray getArray(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public ColumnarMap getMap(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    throw new UnsupportedOperationException();
  }
}
