import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;

/** Asks by Java's own client as it is made by default: it offers to go on by HTTP/2. */
class Asks {
    public static void main(String[] given) throws Exception {
        var client = HttpClient.newHttpClient();
        for (int at = 1; at < given.length; at += 3) {
            var request = HttpRequest.newBuilder(URI.create(given[0] + given[at]))
                .header("Content-Type", given[at + 1])
                .POST(BodyPublishers.ofByteArray(Files.readAllBytes(Path.of(given[at + 2]))))
                .build();
            var answer = client.send(request, BodyHandlers.ofByteArray());
            System.out.write((answer.statusCode() + " ").getBytes());
            System.out.write(answer.body());
            System.out.write(0);
        }
        System.out.flush();
    }
}
