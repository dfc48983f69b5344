// A server that gives back what it gets, and a client that looks at every byte of it.
import java.io.*;
import java.net.*;
import java.util.*;

public class RackJava {
    static void echo(ServerSocket listener) {
        try (Socket connection = listener.accept()) {
            InputStream in = connection.getInputStream();
            OutputStream out = connection.getOutputStream();
            byte[] bytes = new byte[70000];
            for (int n; (n = in.read(bytes)) > 0;) {
                out.write(bytes, 0, n);
            }
        } catch (IOException e) {
            e.printStackTrace();
        }
    }

    public static void main(String[] args) throws Exception {
        ServerSocket listener = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"));
        new Thread(() -> echo(listener)).start();
        Socket connection = new Socket("127.0.0.1", listener.getLocalPort());
        DataInputStream in = new DataInputStream(connection.getInputStream());
        OutputStream out = connection.getOutputStream();
        byte[] data = new byte[3 << 20];
        new Random(1).nextBytes(data);
        for (int round = 0; round < 50; round++) {
            out.write(data, 0, 64);
            in.readFully(new byte[64]);
        }
        new Thread(() -> {
            try {
                out.write(data);
                connection.shutdownOutput();
            } catch (IOException e) {
                e.printStackTrace();
            }
        }).start();
        byte[] got = new byte[data.length];
        in.readFully(got);
        if (!Arrays.equals(data, got) || in.read() != -1) {
            throw new Exception("other bytes came back");
        }
        System.out.println("right");
    }
}
