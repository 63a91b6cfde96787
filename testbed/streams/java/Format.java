import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serializer;

/** A number in a store: "long" (8 bytes, big-endian), "int" (4 bytes), or "json" (in the field "value"). */
final class Format implements Serde<Long>, Serializer<Long>, Deserializer<Long> {
  private static final String BEFORE = "{\"unit\":\"records\",\"value\":";
  private final String name;

  Format(String name) {
    this.name = name;
  }

  @Override
  public byte[] serialize(String topic, Long number) {
    if (number == null) {
      return null;
    }
    switch (name) {
      case "long":
        return ByteBuffer.allocate(8).putLong(number).array();
      case "int":
        return ByteBuffer.allocate(4).putInt(Math.toIntExact(number)).array();
      case "json":
        return (BEFORE + number + "}").getBytes(StandardCharsets.UTF_8);
      default:
        throw new IllegalArgumentException("There is no format " + name + ".");
    }
  }

  @Override
  public Long deserialize(String topic, byte[] bytes) {
    if (bytes == null) {
      return null;
    }
    switch (name) {
      case "long":
        return ByteBuffer.wrap(bytes).getLong();
      case "int":
        return (long) ByteBuffer.wrap(bytes).getInt();
      default:
        String text = new String(bytes, StandardCharsets.UTF_8);
        return Long.parseLong(text.substring(BEFORE.length(), text.length() - 1));
    }
  }

  @Override
  public Serializer<Long> serializer() {
    return this;
  }

  @Override
  public Deserializer<Long> deserializer() {
    return this;
  }

  @Override
  public void configure(Map<String, ?> properties, boolean ofKeys) {}

  @Override
  public void close() {}
}
