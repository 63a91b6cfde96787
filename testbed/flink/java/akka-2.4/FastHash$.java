package akka.remote.artery;

/**
 * Stands in for the class of this name in Akka 2.4, which reads the char[] inside a String by Unsafe: since JDK 9 it is
 * a byte[]. Any hash will do that is the same in all processes.
 */
public final class FastHash$ {
  public static final FastHash$ MODULE$ = new FastHash$();

  public int ofString(String text) {
    return text.hashCode();
  }
}
