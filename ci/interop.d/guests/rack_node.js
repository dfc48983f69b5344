// Eight connections at once to a server that gives back what it gets; every byte is looked at.
const net = require('net');
const data = require('crypto').randomBytes(3 << 20);
const server = net.createServer((connection) => connection.pipe(connection));
server.listen(0, '127.0.0.1', () => {
  let left = 8;
  for (let n = 0; n < 8; n++) {
    const client = net.connect(server.address().port, '127.0.0.1');
    const got = [];
    let rounds = 0;
    client.setNoDelay();
    client.write('ping');
    client.on('data', (part) => {
      if (rounds === 50) return got.push(part);
      rounds += 1;
      if (rounds < 50) client.write('ping'); else client.end(data);
    });
    client.on('end', () => {
      if (!Buffer.concat(got).equals(data)) throw new Error('other bytes came back');
      left -= 1;
      if (left === 0) { console.log('right'); server.close(); }
    });
  }
});
