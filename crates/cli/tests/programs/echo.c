/* Sends back what one client sends. Says its port first. */

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    char bytes[1 << 16];
    ssize_t got;

    if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 1))
        return 1;
    getsockname(listener, (struct sockaddr *)&at, &len);
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    int client = accept(listener, NULL, NULL);
    while ((got = read(client, bytes, sizeof bytes)) > 0)
        for (ssize_t at = 0, sent; at < got; at += sent)
            if ((sent = write(client, bytes + at, got - at)) < 0)
                return 1;
    return got != 0;
}
