// Command gpu_plugin is a Kubernetes device plugin that offers emulated GPUs to one kubelet.
//
// It stands where NVIDIA's plugin stands on a real node, so that the real kubelet and the real
// scheduler account for nvidia.com/gpu. A device is an id and nothing behind it. Ids listed in the
// sick file, one a line, are reported unhealthy: the node's allocatable falls, its capacity stays.
//
// Source: the device plugin API, k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	endpoint = "emulated-gpu.sock"
	// lookAgain bounds how late a sick GPU or a restarted kubelet is noticed.
	lookAgain = 200 * time.Millisecond
	// registerWithin is how long the kubelet may take to answer a registration.
	registerWithin = 5 * time.Second
)

type server struct {
	plugin.UnimplementedDevicePluginServer
	ids      []string
	sickFile string
}

// devices returns every GPU with its health as the sick file has it now.
func (s *server) devices() []*plugin.Device {
	listed, err := os.ReadFile(s.sickFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Print(err)
	}
	sick := strings.Fields(string(listed))
	devices := make([]*plugin.Device, len(s.ids))
	for i, id := range s.ids {
		devices[i] = &plugin.Device{ID: id, Health: plugin.Healthy}
		if slices.Contains(sick, id) {
			devices[i].Health = plugin.Unhealthy
		}
	}
	return devices
}

func (s *server) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices now and again whenever the health of one changes.
func (s *server) ListAndWatch(_ *plugin.Empty, stream grpc.ServerStreamingServer[plugin.ListAndWatchResponse]) error {
	var sent []*plugin.Device
	same := func(a, b *plugin.Device) bool { return a.ID == b.ID && a.Health == b.Health }
	for {
		if now := s.devices(); sent == nil || !slices.EqualFunc(sent, now, same) {
			if err := stream.Send(&plugin.ListAndWatchResponse{Devices: now}); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(lookAgain):
		}
	}
}

// Allocate tells a container its GPUs in the variable that NVIDIA's runtime reads.
func (s *server) Allocate(_ context.Context, request *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	response := &plugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := strings.Join(container.DevicesIds, ",")
		response.ContainerResponses = append(response.ContainerResponses,
			&plugin.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": ids}})
	}
	return response, nil
}

// register announces the plugin to the kubelet, which then calls ListAndWatch.
func register() error {
	connection, err := grpc.NewClient("unix://"+plugin.KubeletSocket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), registerWithin)
	defer cancel()
	_, err = plugin.NewRegistrationClient(connection).Register(ctx, &plugin.RegisterRequest{
		Version: plugin.Version, Endpoint: endpoint, ResourceName: resource})
	return err
}

// serveOnce serves until the kubelet empties the plugin folder, which it does when it starts.
func serveOnce(s *server, socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	g := grpc.NewServer()
	plugin.RegisterDevicePluginServer(g, s)
	go g.Serve(listener)
	defer g.Stop()
	if err := register(); err != nil {
		return err
	}
	log.Printf("registered %d GPUs", len(s.ids))
	for {
		if _, err := os.Stat(socket); err != nil {
			return fmt.Errorf("the kubelet has restarted: %w", err)
		}
		time.Sleep(lookAgain)
	}
}

func main() {
	gpus := flag.Int("gpus", 0, "how many GPUs to offer")
	sickFile := flag.String("sick-file", "", "file with the ids of unhealthy GPUs, one a line")
	flag.Parse()
	if *gpus < 1 || *sickFile == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: gpu_plugin --gpus COUNT --sick-file PATH")
		os.Exit(2)
	}
	s := &server{sickFile: *sickFile}
	for i := range *gpus {
		s.ids = append(s.ids, fmt.Sprintf("emulated-gpu-%d", i))
	}
	for {
		log.Print(serveOnce(s, filepath.Join(plugin.DevicePluginPath, endpoint)))
		time.Sleep(lookAgain)
	}
}
