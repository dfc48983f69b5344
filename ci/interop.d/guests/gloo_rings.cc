// gloo over its ibverbs transport: the collectives that have buffers of their own, every result checked.
//   gloo_rings RANK RANKS DIRECTORY

#include <gloo/allgather_ring.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

static void expect(bool good, const char* what) {
  if (!good) {
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
  }
}

// Kept to the end: gloo takes it for an error that a buffer goes while a send's completion has not come.
static auto& kept = *new std::vector<std::shared_ptr<gloo::Algorithm>>;

template <typename Algorithm>
static void reduce(const std::shared_ptr<gloo::Context>& context, int count, const char* name) {
  auto& values = *new std::vector<float>(count);
  auto algorithm = std::make_shared<Algorithm>(context, std::vector<float*>{values.data()}, count);
  kept.push_back(algorithm);
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < count; i++) values[i] = float((i + round) % 1000 * (context->rank + 1));
    algorithm->run();
    const int ranks = context->size * (context->size + 1) / 2;
    for (int i = 0; i < count; i++) expect(values[i] == float((i + round) % 1000 * ranks), name);
  }
}

int main(int count, char** words) {
  expect(count == 4, "RANK RANKS DIRECTORY");
  const int rank = std::atoi(words[1]), ranks = std::atoi(words[2]);
  gloo::transport::ibverbs::attr attributes = {"", 1, 1};
  auto device = gloo::transport::ibverbs::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(words[3]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->connectFullMesh(store, device);
  for (int size : {1, 1000, 250000}) {
    reduce<gloo::AllreduceRing<float>>(context, size, "AllreduceRing");
    reduce<gloo::AllreduceRingChunked<float>>(context, size, "AllreduceRingChunked");
    reduce<gloo::AllreduceHalvingDoubling<float>>(context, size, "AllreduceHalvingDoubling");
  }
  std::vector<int> mine(5000, rank), all(5000 * ranks);
  auto gather = std::make_shared<gloo::AllgatherRing<int>>(context, std::vector<const int*>{mine.data()}, all.data(), mine.size());
  gather->run();
  for (size_t i = 0; i < all.size(); i++) expect(all[i] == int(i / mine.size()), "AllgatherRing");
  std::vector<int> sent(70000, rank == 1 ? 42 : 0);
  auto broadcast = std::make_shared<gloo::BroadcastOneToAll<int>>(context, std::vector<int*>{sent.data()}, sent.size(), 1);
  broadcast->run();
  for (int value : sent) expect(value == 42, "BroadcastOneToAll");
  auto barrier = std::make_shared<gloo::BarrierAllToAll>(context);
  barrier->run();
  std::puts("checked");
  // Not by return, which ends connections that others still wait for.
  std::exit(0);
}
