import java.util.Properties;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.connectors.kafka.FlinkKafkaConsumer011;

/** Reads a topic from the group's offsets, or else from the log start offset. Arguments: testbed/flink/programs.py. */
public final class KafkaJob {
  private KafkaJob() {}

  public static void main(String[] args) throws Exception {
    StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
    env.setParallelism(Integer.parseInt(args[1]));
    env.enableCheckpointing(Long.parseLong(args[3]));
    Properties kafka = new Properties();
    kafka.setProperty("bootstrap.servers", args[4]);
    kafka.setProperty("group.id", args[6]);
    kafka.setProperty("auto.offset.reset", "earliest");
    // A fetch from a leader that is frozen blocks for 5 minutes (request.timeout.ms): only metadata name the new one.
    kafka.setProperty("metadata.max.age.ms", "3000");
    FlinkKafkaConsumer011<String> source = new FlinkKafkaConsumer011<>(args[5], new SimpleStringSchema(), kafka);
    source.setStartFromGroupOffsets();
    Work.on(env.addSource(source).name("kafka-source").uid("source"), Long.parseLong(args[2]));
    env.execute(args[0]);
  }
}
