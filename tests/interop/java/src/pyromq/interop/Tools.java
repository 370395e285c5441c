package pyromq.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's `mqadmin`, once for the `arguments` of each line; tells what it `printed` and what it `complained` of. */
public final class Tools {
    private Tools() {
    }

    public static void main(String[] none) throws Exception {
        for (JsonObject line : Lines.read()) {
            List<String> arguments = new ArrayList<>();
            for (JsonElement argument : line.getAsJsonArray("arguments")) {
                arguments.add(argument.getAsString());
            }
            Lines.write(run(arguments.toArray(new String[0])));
        }
        Runtime.getRuntime().halt(0); // clients take seconds to end
    }

    private static Map<String, Object> run(String[] arguments) {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        try {
            MQAdminStartup.main0(arguments, null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        Map<String, Object> line = new TreeMap<>();
        line.put("printed", printed.toString(StandardCharsets.UTF_8));
        line.put("complained", complained.toString(StandardCharsets.UTF_8));
        return line;
    }
}
