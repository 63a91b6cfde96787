import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.kafka.clients.consumer.OffsetResetStrategy;

/** Reads a topic from the group's offsets, or else from the log start offset. Arguments: testbed/flink/programs.py. */
public final class KafkaJob {
  private KafkaJob() {}

  public static void main(String[] args) throws Exception {
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
    env.setParallelism(Integer.parseInt(args[1]));
    env.enableCheckpointing(Long.parseLong(args[3]));
    KafkaSource<String> source =
        KafkaSource.<String>builder()
            .setBootstrapServers(args[4])
            .setTopics(args[5])
            .setGroupId(args[6])
            .setStartingOffsets(OffsetsInitializer.committedOffsets(OffsetResetStrategy.EARLIEST))
            .setValueOnlyDeserializer(new SimpleStringSchema())
            .build();
    Work.on(
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "kafka-source").uid("source"),
        Long.parseLong(args[2]));
    env.execute(args[0]);
  }
}
