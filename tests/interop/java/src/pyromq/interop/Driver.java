package pyromq.interop;

import java.util.Arrays;

/** Entry: `NAME_SERVERS COMMAND ARGUMENT...`. Lines of JSON come out; a failure is a stack trace and exit code 1. */
public final class Driver {
    private Driver() {
    }

    public static void main(String[] arguments) {
        int code = 0;
        try {
            run(arguments[0], arguments[1], Arrays.copyOfRange(arguments, 2, arguments.length));
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        Runtime.getRuntime().halt(code); // the client leaves threads behind
    }

    private static void run(String nameServers, String command, String[] rest) throws Exception {
        switch (command) {
            case "send": // WAY GROUP
                Sending.run(nameServers, rest[0], rest[1]);
                break;
            case "load": // TOPIC GROUP SECONDS
                Loading.run(nameServers, rest[0], rest[1], Integer.parseInt(rest[2]));
                break;
            case "transact": // GROUP SECONDS
                Transacting.run(nameServers, rest[0], Integer.parseInt(rest[1]));
                break;
            case "request": // GROUP; lines are questions
                Requesting.request(nameServers, rest[0]);
                break;
            case "reply": // TOPIC GROUP COUNT SECONDS
                Requesting.reply(nameServers, rest[0], rest[1], Integer.parseInt(rest[2]), Integer.parseInt(rest[3]));
                break;
            case "pull": // TOPIC GROUP TAGS
                Pulling.run(nameServers, rest[0], rest[1], rest[2]);
                break;
            case "lite-pull": // TOPIC GROUP COUNT SECONDS
                Pulling.lite(nameServers, rest[0], rest[1], Integer.parseInt(rest[2]), Integer.parseInt(rest[3]));
                break;
            case "push": // TOPIC GROUP TAGS COUNT SECONDS
            case "push-orderly":
            case "push-pop": // the broker says whether to pop; client 5 only
                Pushing.run(nameServers, command, Arrays.copyOf(rest, 3), Integer.parseInt(rest[3]),
                    Integer.parseInt(rest[4]));
                break;
            case "assign": // lines say what
                Assigning.run();
                break;
            case "local-offsets": // TOPIC CLIENT GROUP; lines are offsets to store
                LocalOffsets.run(rest[0], rest[1], rest[2]);
                break;
            default:
                Asking.run(nameServers, command, rest);
        }
    }
}
