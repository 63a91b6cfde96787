import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Stream;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * One aggregate per key over one topic, in the API that Kafka Streams 2.1 to 4.3 share.
 *
 * <p>Arguments: input topic, topology, store, format of its values, how long the store takes to close (ms), then
 * Streams properties as name=value.
 */
public final class StreamsJob {
  public static void main(String[] arguments) throws InterruptedException {
    Properties properties = new Properties();
    for (int i = 5; i < arguments.length; i++) {
      String[] one = arguments[i].split("=", 2);
      properties.put(one[0], one[1]);
    }
    properties.put("default.key.serde", Serdes.StringSerde.class.getName());
    properties.put("default.value.serde", Serdes.StringSerde.class.getName());

    StreamsBuilder builder = new StreamsBuilder();
    Materialized<String, Long, KeyValueStore<Bytes, byte[]>> kept =
        Materialized.<String, Long>as(new SlowToClose(arguments[2], Long.parseLong(arguments[4])))
            .withKeySerde(Serdes.String()).withValueSerde(new Format(arguments[3]));
    if (arguments[1].equals("windowed-count")) {
      countWindows(builder.stream(arguments[0]), arguments[2], new Format(arguments[3]));
    } else {
      aggregate(builder.stream(arguments[0]), arguments[1], kept);
    }
    KafkaStreams streams = new KafkaStreams(builder.build(), properties);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
    streams.start();
    new CountDownLatch(1).await();
  }

  private static void aggregate(KStream<String, String> input, String topology,
      Materialized<String, Long, KeyValueStore<Bytes, byte[]>> kept) {
    KGroupedStream<String, String> byKey = input.groupByKey();
    switch (topology) {
      case "count":
        byKey.aggregate(() -> 0L, (key, value, count) -> count + 1, kept);
        break;
      case "repartitioned-count": // a second subtopology counts behind the topic <application.id>-by-key-repartition
        input.selectKey((key, value) -> "by-" + key).groupByKey(Grouped.as("by-key"))
            .aggregate(() -> 0L, (key, value, count) -> count + 1, kept);
        break;
      case "sum": // falls with a negative value, as it should
        byKey.aggregate(() -> 0L, (key, value, sum) -> sum + Long.parseLong(value), kept);
        break;
      case "max": // of sequence numbers, say
        byKey.aggregate(() -> 0L, (key, value, max) -> Math.max(max, Long.parseLong(value)), kept);
        break;
      case "deletable-count": // the value "delete" makes a tombstone; the count begins again at 1
        byKey.aggregate(() -> 0L, (key, value, count) -> value.equals("delete") ? null : (Long) (count + 1), kept);
        break;
      default:
        throw new IllegalArgumentException("There is no topology " + topology + ".");
    }
  }

  /** Every window has its own keys and starts at 1. */
  private static void countWindows(KStream<String, String> input, String store, Format format) {
    Duration window = Duration.ofSeconds(10);
    input.groupByKey().windowedBy(windowsOf(window)).aggregate(() -> 0L,
        (key, value, count) -> count + 1,
        Materialized.<String, Long>as(Stores.persistentWindowStore(store, window.multipliedBy(3), window, false))
            .withKeySerde(Serdes.String()).withValueSerde(format));
  }
  /** Windows without grace; 3.0 renamed the method, and 4.0 removed the old ones. */
  private static TimeWindows windowsOf(Duration size) {
    Class<TimeWindows> type = TimeWindows.class;
    try {
      if (Stream.of(type.getMethods()).anyMatch(method -> method.getName().equals("ofSizeWithNoGrace"))) {
        return (TimeWindows) type.getMethod("ofSizeWithNoGrace", Duration.class).invoke(null, size);
      }
      Object windows = type.getMethod("of", Duration.class).invoke(null, size);
      return (TimeWindows) type.getMethod("grace", Duration.class).invoke(windows, Duration.ZERO);
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }
}
