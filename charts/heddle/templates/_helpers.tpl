{{- define "heddle.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "heddle.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "heddle.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "heddle.selector" -}}
app.kubernetes.io/name: {{ include "heddle.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "heddle.ownLabels" -}}
{{ include "heddle.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* A key of several maps is written once: strict parsers refuse a second one.  Ours win. */ -}}
{{- define "heddle.labels" -}}
{{ merge (include "heddle.ownLabels" . | fromYaml) (.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{- define "heddle.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "heddle.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "heddle.image" -}}
{{- $image := .image -}}
{{- if $image.digest }}
{{- printf "%s@%s" $image.repository $image.digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (default .version $image.tag) }}
{{- end }}
{{- end }}

{{- define "heddle.operatorImage" -}}
{{- include "heddle.image" (dict "image" .Values.image "version" .Chart.AppVersion) }}
{{- end }}

{{- define "heddle.workerImage" -}}
{{- include "heddle.image" (dict "image" .Values.worker.image "version" .Chart.AppVersion) }}
{{- end }}

{{- /* What the operator needs of objects in namespaces; nothing is deleted but what the job owns. */ -}}
{{- define "heddle.namespacedRules" -}}
- apiGroups: [heddle.dev]
  resources: [heddlejobs]
  verbs: [get, list, watch, delete]
- apiGroups: [heddle.dev]
  resources: [heddlejobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, update, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
- apiGroups: [""]
  resources: [events]
  verbs: [list]
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list, watch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}

{{- /* How a pod of the operator's image is pulled and where it may run, its own and that of `helm test`. */ -}}
{{- define "heddle.podPlace" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
